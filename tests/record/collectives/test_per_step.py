from stepscope.record.collectives import StepVolume


def entry(time_ns, *, elements=1000, name="gloo:all_reduce", group="0", p2p=False):
    return {
        "profiling_name": name,
        "process_group": (group, "default_pg"),
        "time_created_ns": time_ns,
        "is_p2p": p2p,
        "input_sizes": [[elements]],
        "input_dtypes": ["Float"],
        "output_sizes": [[elements]],
        "output_dtypes": ["Float"],
    }


def test_bytes_from_cpp_are_unknown_until_the_recorder_showed_a_step_like_it():
    volume = StepVolume()
    volume.end_of_step([("0", 2, 0)], now_ns=100)
    volume.call("all_gather", 8000)
    volume.in_python("0", numbers=1, since_ns=110, until_ns=120)
    assert volume.end_of_step([("0", 2, 3)], now_ns=200) == {"count": 3, "bytes": None}
    entries = [entry(115), entry(150, elements=250), entry(160, elements=500)]
    in_cpp = volume.from_cpp(entries)
    assert [e["time_created_ns"] for e in in_cpp] == [150, 160]
    volume.learn(in_cpp)
    assert volume.end_of_step([("0", 2, 5)], now_ns=300) == {"count": 2, "bytes": 3000}
    assert volume.end_of_step([("0", 2, 6)], now_ns=400) == {"count": 1, "bytes": None}  # not like it


def test_sends_and_receives_are_counted_apart_and_do_not_shift_the_rest():
    volume = StepVolume()
    volume.end_of_step([("0", 2, 0)], now_ns=100)
    volume.call("send", 64)
    volume.in_python("0", numbers=1, since_ns=110, until_ns=120)
    line = volume.end_of_step([("0", 2, 1)], now_ns=200)
    assert line == {"count": 0, "bytes": 0, "p2p_count": 1, "p2p_bytes": 64}


def test_short_steps_share_a_line_with_their_sums():
    volume = StepVolume()
    volume.end_of_step([("0", 2, 0)], now_ns=100)
    volume.end_of_step([("0", 2, 2)], now_ns=200)
    volume.learn(volume.from_cpp([entry(150, elements=10), entry(160, elements=20)]))
    volume.share_a_look()
    volume.share_a_look()
    volume.call("all_gather", 1000)
    volume.in_python("0", numbers=1, since_ns=210, until_ns=220)
    line = volume.end_of_step([("0", 2, 9)], now_ns=500)
    assert line == {"count": 7, "bytes": 3 * 120 + 1000, "steps": 3}
    assert volume.end_of_step([("0", 2, 11)], now_ns=600) == {"count": 2, "bytes": 120}
