"""`engram send` and `engram ask`: one request to a running app, by names alone."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cli.saying import Engram, sentence
from tests.serving.running import RunningApp


def test_a_command_is_sent_and_a_query_asked(engram: Engram, social: RunningApp):
    """The reply and the answer are printed as JSON for people, with the position below."""
    sent = engram("send", "register", "cli-ada", '{"name": "Ada"}', "--url", social.url)
    asked = engram("ask", "profile", "cli-ada", "--url", social.url)

    assert (sent.exit_code, sent.stderr) == (0, "")
    assert sent.stdout.splitlines()[0] == "null"
    assert sent.stdout.splitlines()[1].startswith("position ")
    *answer, position = asked.stdout.splitlines()
    assert json.loads("".join(answer))["name"] == "Ada"
    assert position.startswith("position ")


def test_json_is_one_line_for_programs(engram: Engram, social: RunningApp):
    """`--json` prints what the gateway said, as one object in one line."""
    engram("send", "register", "cli-bob", '{"name": "Bob"}', "--url", social.url)
    (sent,) = engram("send", "publish", "cli-bob", '{"text": "hé"}', "--json", "--url", social.url).stdout.splitlines()
    (asked,) = engram("ask", "posts", "cli-bob", '{"limit": 1}', "--json", "--url", social.url).stdout.splitlines()

    assert json.loads(sent).keys() == {"reply", "position"}
    (post,) = json.loads(asked)["answer"]
    assert (post["post"], post["text"]) == (json.loads(sent)["reply"], "hé")


def test_no_wait_prints_the_position_alone_and_a_query_can_ask_for_it(engram: Engram, social: RunningApp):
    """A command that is only logged can be waited for with `--at-least`."""
    sent = engram("send", "register", "cli-eve", '{"name": "Eve"}', "--no-wait", "--json", "--url", social.url)
    position = json.loads(sent.stdout)["position"]
    asked = engram("ask", "profile", "cli-eve", "--at-least", position, "--json", "--url", social.url)

    assert json.loads(sent.stdout).keys() == {"position"}
    assert json.loads(asked.stdout)["answer"]["name"] == "Eve"


def test_effects_are_waited_for_and_their_token_is_printed(engram: Engram, social: RunningApp):
    """What `--wait effects` prints last can be asked with, for any entity that the command had to do with."""
    for name in ("cli-fan", "cli-star"):
        engram("send", "register", name, '{"name": "X"}', "--url", social.url)
    sent = engram("send", "follow", "cli-fan", '{"whom": "cli-star"}', "--wait", "effects", "--url", social.url)
    token = sent.stdout.splitlines()[-1].removeprefix("token ")
    asked = engram("ask", "profile", "cli-star", "--at-least", token, "--json", "--url", social.url)
    strange = engram("ask", "profile", "cli-star", "--at-least", f"{token}0", "--url", social.url)

    assert json.loads(asked.stdout)["answer"]["followers"] == 1
    assert "is not a token" in sentence(strange, 2)


def test_an_idempotency_key_makes_a_repeated_command_one(engram: Engram, social: RunningApp):
    """The same command with the same key gives the first reply again instead of a rejection."""
    for _ in range(2):
        result = engram(
            "send", "register", "cli-key", '{"name": "K"}', "--idempotency-key", "cli-1", "--url", social.url
        )
        assert result.exit_code == 0


def test_a_look_shows_rows_and_where_to_go_on(engram: Engram, social: RunningApp):
    """Rows are printed as JSON, with the cursor of the next ones if there are more, and all positions."""
    for name in ("lo", "li", "la"):
        engram("send", "register", f"cli-{name}", '{"name": "Looker"}', "--url", social.url)
        engram("send", "follow", f"cli-{name}", '{"whom": "cli-sun"}', "--url", social.url)
    looked = engram("look", "followers_of", "cli-sun", "--limit", "2", "--url", social.url)
    *rows, cursor, positions = looked.stdout.splitlines()
    rest = engram("look", "followers_of", "cli-sun", "--cursor", cursor.split()[1], "--json", "--url", social.url)
    tallied = engram("look", "figures", "nothing", "--url", social.url)

    assert json.loads("".join(rows)) == ["cli-la", "cli-li"]
    assert positions.startswith("positions 0:")
    assert (json.loads(rest.stdout)["rows"], json.loads(rest.stdout)["cursor"]) == (["cli-lo"], None)
    assert '"count": 0' in tallied.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("send", "folow", "ada"), "App social has no command 'folow'. Did you mean follow, unfollow, lose_follower?"),
        (("ask", "profil", "ada"), "App social has no query 'profil'. Did you mean profile?"),
        (
            ("ask", "zzz", "ada"),
            "App social has no query 'zzz'. It has: asking, banned_words, celebrities, drafts, followers, following,",
        ),
        (("look", "folowers", "ada"), "App social has no read model 'folowers'. Did you mean followers_of"),
        (("look", "followers_of", "ada", "--cursor", "x"), "The cursor is not one of followers_of at 'ada'"),
        (("send", "publish", "ada", "{}"), "The body does not fit: text: Field required."),
        (("send", "publish", "ada", "{"), "The body is not JSON:"),
        (("ask", "posts", "ada", '{"limit": 0}'), "limit: Input should be greater than or equal to 1"),
        (("ask", "posts", ""), "The key is empty"),
        (("ask", "posts", "ada", "--at-least", "x"), "'x' is not a position"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    engram: Engram, social: RunningApp, arguments: tuple[str, ...], said: str
):
    """Unknown names come with their near misses, bodies that do not fit with the field."""
    assert said in sentence(engram(*arguments, "--url", social.url), 2)


def test_a_rejection_is_exit_code_2_with_code_and_text(engram: Engram, social: RunningApp):
    """What the handler says reaches the terminal."""
    said = sentence(engram("send", "publish", "cli-nobody", '{"text": "x"}', "--url", social.url), 2)

    assert said == "unknown_user: There is no user cli-nobody."


@pytest.mark.parametrize("arguments", [("send", "register", "ada"), ("ask", "posts", "ada")])
def test_nothing_that_listens_is_exit_code_3(engram: Engram, nobody: str, arguments: tuple[str, ...]):
    """Without an app there, the sentence names the address and asks the right question."""
    said = sentence(engram(*arguments, "--url", nobody), 3)

    assert said.startswith(f"No app answers at {nobody} (")
    assert said.endswith("is `engram run` running there?")


def test_something_else_that_listens_is_exit_code_3(engram: Engram, stranger: str):
    """A web server that is no gateway is no app."""
    assert f"No app answers at {stranger}" in sentence(engram("ask", "posts", "ada", "--url", stranger), 3)


def test_an_address_that_is_none_is_exit_code_2(engram: Engram):
    """An address without http:// is a mistake, not an absence."""
    assert "write http://HOST:PORT" in sentence(engram("ask", "posts", "ada", "--url", "localhost:8080"), 2)


def test_the_program_itself_does_the_same(social: RunningApp):
    """As a process of its own: the answer on stdout, the exit code of a refusal, no traceback."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "engram.cli.main", *arguments, "--url", social.url]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    asked = run("ask", "posts", "cli-process", "--json")
    refused = run("ask", "post", "cli-process")

    assert (asked.returncode, json.loads(asked.stdout)["answer"]) == (0, [])
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "engram: App social has no query 'post'. Did you mean posts?\n"
