import io
import json

import httpx
import numpy as np
import pyarrow as pa
import pytest

from frontend.answer import decode_arrow, decode_json
from frontend.client import Client, Job, NotAsked, Question, Refusal, Unreachable
from tests.frontend import planted
from tests.frontend.fake_backend import create_fake

LOAD = Question("expert_load", ("aux/step-02000",), "four-tasks", {})
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def client():
    made = Client("http://fake", httpx.ASGITransport(create_fake()))
    yield made
    await made.close()


def as_arrow(data):
    """The API's Arrow form of an answer."""
    shape = np.shape(data["values"])

    def flat(x):
        return np.broadcast_to(np.asarray(x, dtype=np.float64), shape).ravel()

    columns = {"values": flat(data["values"])}
    columns |= {f"null_{k}": flat(data["null"][k]) for k in ("mean", "low", "high")}
    columns |= {f"interval_{k}": flat(data["interval"][k]) for k in ("low", "high")}
    rest = {k: v for k, v in data.items() if k != "values"} | {"shape": list(shape)}
    table = pa.table(columns).replace_schema_metadata({b"answer": json.dumps(rest).encode()})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_json_and_arrow_say_the_same():
    data = planted.answer(LOAD.body())
    one, other = decode_json(data), decode_arrow(as_arrow(data))
    assert np.array_equal(one.values, other.values) and one.axes == other.axes and one.key == other.key
    assert one.null is not None and other.null is not None and one.interval is not None and other.interval is not None
    assert np.array_equal(np.broadcast_to(one.null.high, one.values.shape), other.null.high)
    assert np.array_equal(one.interval.low, other.interval.low) and other.interval.how == one.interval.how


def test_undefined_numbers_arrive_as_nan_and_reasons_as_sentences():
    data = planted.answer({"measure": "coactivation", "checkpoints": ["aux/step-02000"], "knobs": {}})
    assert np.isnan(decode_json(data).values[1, 3]).all()
    without = planted.answer({"measure": "signature_embedding", "checkpoints": ["aux/step-02000"], "knobs": {}})
    answer = decode_json(without)
    assert answer.null is None and answer.null_reason == "coordinates have no null"


async def test_what_the_store_lacks_has_a_price_and_starts_nothing(client):
    told = await client.stored(LOAD)
    assert isinstance(told, NotAsked) and told.cost["tokens"] == 4096
    assert await client.jobs() == []


async def test_asking_starts_a_job_that_a_reload_finds_again(client):
    job = await client.ask(LOAD)
    assert isinstance(job, Job)
    client.forget()
    again = await client.stored(LOAD)
    assert isinstance(again, Job) and again.id == job.id


async def test_a_refusal_carries_the_sentence_and_what_is_known(client):
    with pytest.raises(Refusal) as caught:
        await client.ask(Question("no_such", ("aux/step-02000",), None))
    assert caught.value.status == 422 and "no_such" in str(caught.value) and "expert_load" in caught.value.known


async def test_a_backend_that_is_away_is_named_with_its_address():
    client = Client("http://127.0.0.1:9")
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
        await client.health()
    await client.close()


async def test_a_failed_list_is_asked_again_and_not_kept():
    answers = iter([httpx.Response(500, text="boom"), httpx.Response(200, json={"measures": [{"name": "x"}]})])
    client = Client("http://fake", httpx.MockTransport(lambda request: next(answers)))
    with pytest.raises(Refusal):
        await client.measures()
    assert await client.measures() == [{"name": "x"}]
    await client.close()


async def test_a_job_that_ends_between_two_looks_leaves_its_answer_not_a_question_not_asked():
    looked = []

    def backend(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/jobs"):
            return httpx.Response(200, json={"jobs": [{"id": "j0", "key": "k", "state": "done"}]})
        looked.append(request)
        if len(looked) == 1:
            return httpx.Response(404, json={"detail": "Not asked yet.", "cost": {"passes": 1}, "key": "k"})
        return httpx.Response(200, json=planted.answer(LOAD.body()))

    client = Client("http://fake", httpx.MockTransport(backend))
    assert not isinstance(await client.stored(LOAD), Job | NotAsked)
    await client.close()


async def test_an_answer_that_was_dropped_since_its_job_ended_is_not_looked_for_for_ever():
    def backend(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/jobs"):
            return httpx.Response(200, json={"jobs": [{"id": "j0", "key": "k", "state": "done"}]})
        return httpx.Response(404, json={"detail": "Not asked yet.", "cost": {"passes": 1}, "key": "k"})

    client = Client("http://fake", httpx.MockTransport(backend))
    assert isinstance(await client.stored(LOAD), NotAsked)
    await client.close()
