"""What an app's author needs besides the app: brokers on loopback that leave nothing behind."""
