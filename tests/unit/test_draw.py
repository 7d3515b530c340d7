"""Pictures of schedules and of traces: text to the letter, SVG and pages by what is in them."""

import json
import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from megalite.schedule.action import Action, Op
from megalite.schedule.check import Timeline, simulate
from megalite.schedule.draw import GAP, LEFT, WIDTH, Picture, draw_page, draw_svg, draw_text
from megalite.schedule.lower import lower
from megalite.schedule.schedules import make_schedule, placement
from megalite.schedule.trace import Event, Trace, read_trace
from tools import draw_schedule

PICTURES = {
    "1f1b": """\
rank 0   0123......aa4bb5cc6dd7ee.ff.gg.hh
rank 1   .012....aa3bb4cc5dd6ee7ff.gg.hh..
rank 2   ..01..aa2bb3cc4dd5ee6ff7gg.hh....
rank 3   ...0aa1bb2cc3dd4ee5ff6gg7hh......
0-9 forward, a-j backward, . waiting
bubble 27.3%, length 33, in flight 4 3 2 1""",
    "zb-h1": """\
rank 0   0123...aA4bB5cC6dD7eEfFgGhH
rank 1   .012..a3bA4cB5dC6eD7fEgFhGH
rank 2   ..01.a2b3cA4dB5eC6fD7gEhFGH
rank 3   ...0a1b2c3dA4eB5fC6gD7hEFGH
0-9 forward, a-j input gradient, A-J weight gradient, . waiting
bubble 11.1%, length 27, in flight 4 3 2 1 to I, 1 2 3 4 from I to W, 4 4 4 4 together""",
    "zb-v": """\
rank 0   chunk 0 0123456            7aA   bB   cC   dD   eEfFgGhH...
         chunk 1        0aA1bB2cC3dD   4eE  5fF  6gG  7hH        ...
rank 1   chunk 0 .01234 5         6aA   7bB   cC   dD   e fEg hFGH..
         chunk 1 .     0 1aA2bB3cC   4dD   5eE  6fF  7gG h   H    ..
rank 2   chunk 0 ..012 3 4      5aA   6bB   7cC   dD   e f gEh F GH.
         chunk 1 ..   0 1 2aA3bB   4cC   5dD   6eE  7fF g h   G H  .
rank 3   chunk 0 ...0 1 2 3   4aA   5bB   6cC   7dD   e f g hE F G H
         chunk 1 ... 0 1 2 3aA   4bB   5cC   6dD   7eE f g h  F G H
0-9 forward, a-j input gradient, A-J weight gradient, . waiting
bubble 5.9%, length 51, in flight 8 8 8 8 to I, 1 3 5 7 from I to W, 8 8 8 8 together""",
}
"""Four ranks and eight micro-batches."""


def picture(name, p, m, v=1, lowered=False, **said):
    schedule = make_schedule(name, num_ranks=p, num_micro_batches=m, num_chunks=v)
    timeline = simulate(lower(schedule, num_micro_batches=m) if lowered else schedule)
    return Picture(timeline=timeline, placement=placement(name, p, v), **said)


def trace(name="zb-v", p=2, m=3, v=2, step=5, slow=()):
    """What a run would record in which a forward takes 1 ms, I and W 2 ms, and what is `slow` 3 ms more."""
    schedule = make_schedule(name, num_ranks=p, num_micro_batches=m, num_chunks=v)
    timeline = simulate(schedule, lambda a: 1000.0 * (1 if a.op is Op.F else 2) + 3000 * (str(a) in slow))
    place = placement(name, p, v)
    events = [
        Event(action=a, rank=place[a.stage], step=step, begin=7e6 + begin, duration=timeline.ends[a] - begin)
        for a, begin in timeline.begins.items()
    ]
    sync = Event(action=Action(Op.GRAD_SYNC, 0), rank=0, step=step, begin=7e6 + timeline.length + 100, duration=900)
    return Trace(schedule=name, num_ranks=p, num_micro_batches=m, num_chunks=v, group_size=p, events=(*events, sync))


@pytest.mark.parametrize("name", PICTURES)
def test_text(name):
    assert draw_text(picture(name, 4, 8, 2 if name == "zb-v" else 1)) == PICTURES[name]


def test_messages_are_not_drawn():
    assert draw_text(picture("1f1b", 4, 8, lowered=True)) == PICTURES["1f1b"]


def test_text_of_measured_times_fits_its_columns():
    times = {Action(Op.F, 0, 11): (0, 0.26), Action(Op.B, 0, 11): (0.5, 0.998), Action(Op.GRAD_SYNC, 0): (0.998, 1.0)}
    timeline = Timeline(
        begins={a: t for a, (t, _) in times.items()}, ends={a: t for a, (_, t) in times.items()}, length=1, busy=(0.76,)
    )
    drawn = draw_text(Picture(title="one", timeline=timeline, placement=[0], unit=" s"), columns=8)
    assert drawn.splitlines() == [
        "one",
        "rank 0   11..bbbb=",
        "0-9 forward, a-j backward, = sum over replicas, . waiting",
        "bubble 24.0%, length 1 s, in flight 1",
    ]


def test_pictures_share_a_scale():
    short, long = picture("1f1b", 1, 1, title="short"), picture("1f1b", 1, 4, title="long")
    rows = [line for line in draw_text(short, long, columns=24).splitlines() if line.startswith("rank")]
    assert [len(row) - len("rank 0   ") for row in rows] == [6, 24]


def bars(svg):
    """Each drawn action: its name, left and right edge, top, colour."""
    for box in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}rect"):
        for title in box:
            left, width = float(box.get("x")), float(box.get("width"))
            yield title.text.partition(",")[0], left, left + width, float(box.get("y")), box.get("fill")


@pytest.mark.parametrize(("name", "v"), [("1f1b", 1), ("interleaved", 3), ("zb-h1", 1), ("zb-v", 2)])
def test_svg_draws_each_action_where_it_was(name, v):
    drawn = picture(name, 3, 6, v, title="a < b & c")
    found = {bar[0]: bar[1:] for bar in bars(draw_svg(drawn))}
    times, scale = drawn.timeline, WIDTH / drawn.timeline.length
    assert found.keys() == {str(action) for action in times.begins}
    tops = [{found[str(a)][2] for a in times.begins if drawn.placement[a.stage] == rank} for rank in range(3)]
    assert all(len(top) == 1 for top in tops) and all(max(a) < min(b) for a, b in pairwise(tops))
    for action, begin in times.begins.items():
        left, right, _, _ = found[str(action)]
        assert left == pytest.approx(LEFT + begin * scale, abs=0.01)
        assert right == pytest.approx(LEFT + times.ends[action] * scale - GAP, abs=0.02)
    looks = {(action.op, drawn.chunks[action.stage]): found[str(action)][3] for action in times.begins}
    assert len(set(looks.values())) == len(looks)


def test_page_holds_the_pictures_and_each_rank():
    page = draw_page("x < y", picture("zb-h1", 2, 4, title="first"), picture("zb-v", 2, 4, 2, title="second"))
    assert "<title>x &lt; y</title>" in page and page.count("<svg") == 1 and page.count("<table>") == 2
    ElementTree.fromstring(re.search(r"<svg.*</svg>", page, re.DOTALL)[0])
    rows = re.findall(r"<tr>((?:<td>[^<]*</td>)+)</tr>", page)
    assert [re.findall(r"<td>([^<]*)", row) for row in rows] == [
        ["0", "92.3%", "7.7%", "2", "1", "2"],
        ["1", "92.3%", "7.7%", "1", "2", "2"],
        ["0", "96.0%", "4.0%", "4", "1", "4"],
        ["1", "96.0%", "4.0%", "4", "3", "4"],
    ]


def test_a_trace_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(trace().to_json())
    assert read_trace(path) == trace()
    event = json.loads(path.read_text())["traceEvents"][0]
    assert event == {
        "name": "F0.0",
        "ph": "X",
        "ts": 7e6,
        "dur": 1000.0,
        "pid": 0,
        "tid": 0,
        "args": {"op": "F", "stage": 0, "microbatch": 0, "step": 5},
    }


def test_a_trace_in_milliseconds_beside_its_prediction():
    """What each op took on average is what the prediction takes; a sum over replicas is neither work nor length."""
    steady = trace()
    measured, predicted = steady.timeline(5), steady.predicted(5)
    assert measured.begins.items() >= predicted.begins.items()
    assert measured.ends[Action(Op.GRAD_SYNC, 0)] == pytest.approx(measured.length + 1)
    assert measured.length == predicted.length and measured.busy == predicted.busy == (30, 30)
    slow = trace(slow=("F1.2",))
    assert slow.predicted(5).ends[Action(Op.F, 1, 0)] == pytest.approx(1 + 2)
    assert slow.timeline(5).ends[Action(Op.F, 1, 0)] == pytest.approx(1 + 1)


def test_a_replay_is_the_step_without_what_came_between_its_actions():
    """Each action takes what it took, so that of a recorded simulation nothing differs."""
    slow = trace(slow=("F1.2",))
    measured, replayed = slow.timeline(5), slow.replayed(5)
    assert replayed.length == pytest.approx(measured.length) and replayed.busy == pytest.approx(measured.busy)
    late = [replace(e, begin=e.begin + 500 * (e.rank == 1)) for e in slow.events]
    waited = replace(slow, events=tuple(late))
    assert waited.timeline(5).length > waited.replayed(5).length == pytest.approx(replayed.length)


def test_each_step_has_its_number_of_micro_batches():
    early, late = trace(m=2, step=4), trace(m=3, step=5)
    both = Trace(**{**vars(late), "events": early.events + late.events})
    assert both.steps == [4, 5]
    assert both.predicted(4).begins == early.predicted(4).begins
    assert both.predicted(5).begins == late.predicted(5).begins


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not a trace that --pipeline-trace wrote"),
        ("[]", "is not a trace that --pipeline-trace wrote"),
        ('{"traceEvents": []}', "is not a trace that --pipeline-trace wrote: KeyError\\('megalite'\\)"),
        (trace().to_json().replace('"op": "F"', '"op": "G"'), "'G' is not a valid Op"),
    ],
)
def test_what_is_no_trace(tmp_path, content, message):
    path = tmp_path / "trace.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_trace(path)


def test_what_a_trace_does_not_hold():
    whole = trace()
    with pytest.raises(ValueError, match=r"has no step 3\. Try 5\."):
        whole.timeline(3)
    part = Trace(**{**vars(whole), "events": tuple(e for e in whole.events if e.action[:2] != (Op.W, 2))})
    with pytest.raises(ValueError, match=r"step 5 is not whole: no W2\."):
        part.predicted(5)
    with pytest.raises(ValueError, match=r"has no step 0\. Try a longer run\."):
        Trace(**{**vars(whole), "events": ()}).timeline(0)


def test_the_tool_draws(tmp_path, capsys):
    def said(*arguments):
        assert draw_schedule.main([str(argument) for argument in arguments]) == 0
        return capsys.readouterr().out

    assert said("--microbatches", 8) == f"1f1b: 4 ranks, 8 micro-batches\n{PICTURES['1f1b']}\n"
    assert said("--pipeline-schedule", "interleaved", "--virtual", 3, "--pp", 2, "--group-size", 4).splitlines()[0] == (
        "interleaved: 2 ranks, 8 micro-batches, 3 stages a rank"
    )
    image = tmp_path / "x.svg"
    told = said("--pipeline-schedule", "zb-h1", "--pp", 2, "--microbatches", 2, "--output", image)
    assert told.splitlines() == [
        "zb-h1: 2 ranks, 2 micro-batches: bubble 14.3%, length 7, in flight 2 1 to I, 1 2 from I to W, 2 2 together",
        f"The picture is in {image}",
    ]
    assert len(list(bars(image.read_text()))) == 12


def test_the_tool_draws_a_trace(tmp_path, capsys):
    (tmp_path / "trace.json").write_text(trace(slow=("F1.2",)).to_json())
    draw_schedule.main(["--trace", str(tmp_path / "trace.json")])
    drawn = capsys.readouterr().out
    predicted, measured = drawn.split("\n\n")
    assert predicted.startswith("predicted, step 5\n") and measured.startswith("measured, step 5\n")
    assert re.search(r"^bubble [\d.]+%, length [\d.]+ ms", predicted, re.MULTILINE)
    assert re.search(r"^bubble [\d.]+%, length [\d.]+ ms", measured, re.MULTILINE)
    draw_schedule.main(["--trace", str(tmp_path / "trace.json"), "--output", str(tmp_path / "x.html")])
    page = (tmp_path / "x.html").read_text()
    assert page.index("predicted, step 5") < page.index("measured, step 5")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--pp 0", "--pp 0 and --microbatches 8 must be 1 or more. Try --pp 4 --microbatches 8."),
        ("--output x.png", "--output x.png must end in .svg or .html. Try x.svg."),
        ("--virtual 2", "--pipeline-schedule 1f1b has 1 stage on each rank, not 2. Try 1."),
        ("--trace no.json", "no.json"),
    ],
)
def test_the_tool_refuses(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        draw_schedule.main(arguments.split())
    assert message in capsys.readouterr().err
