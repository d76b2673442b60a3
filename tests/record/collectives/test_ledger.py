from stepscope.record.collectives import Ledger

SIZES = {"0": 4}


def entry(record_id, *, duration_ms=None, elements=1000):
    return {
        "profiling_name": "nccl:all_reduce",
        "process_group": ("0", "default_pg"),
        "record_id": record_id,
        "duration_ms": duration_ms,
        "input_sizes": [[elements]],
        "input_dtypes": ["Float"],
        "output_sizes": [[elements]],
        "output_dtypes": ["Float"],
    }


def test_bandwidths_follow_from_what_was_timed():
    ledger = Ledger()
    for dur_ns in (1000, 3000):
        ledger.count("all_reduce", "0", size_bytes=4000)
        ledger.time("all_reduce", "0", size_bytes=4000, dur_ns=dur_ns)
    ledger.count("all_reduce", "0", size_bytes=4000)
    (row,) = ledger.rows(SIZES)
    assert (row.count, row.bytes, row.timed_count) == (3, 12000, 2)
    assert row.algbw_gb_per_s == 2.0  # 8000 bytes in 4000 ns
    assert row.busbw_gb_per_s == 3.0
    assert row.best_busbw_gb_per_s == 6.0


def test_what_was_not_timed_has_no_bandwidth_and_an_unknown_size_no_sum():
    ledger = Ledger()
    ledger.count("broadcast", "0", size_bytes=None)
    (row,) = ledger.rows({})
    assert (row.bytes, row.time_ms, row.algbw_gb_per_s, row.busbw_gb_per_s) == (None, None, None, None)
    assert row.count == 1


def test_entries_that_come_again_are_counted_once():
    ledger = Ledger()
    ledger.add([entry(0), entry(1)], group_sizes=SIZES)
    ledger.add([entry(1), entry(2)], group_sizes=SIZES)
    (row,) = ledger.rows(SIZES)
    assert (row.count, row.bytes) == (3, 12000)


def test_times_of_entries_are_taken_once_and_may_come_later():
    ledger = Ledger()
    ledger.add_times([entry(0, duration_ms=2.0)], group_sizes=SIZES)
    ledger.add_times([entry(0, duration_ms=2.0), entry(1, duration_ms=4.0)], group_sizes=SIZES)
    (row,) = ledger.rows(SIZES)
    assert (row.timed_count, row.time_ms) == (2, 6.0)


def test_a_better_source_of_times_replaces_the_first():
    ledger = Ledger()
    ledger.time("all_reduce", "0", size_bytes=10, dur_ns=10)
    ledger.forget_times({"0"})
    ledger.add_times([entry(0, duration_ms=1.0)], group_sizes=SIZES)
    (row,) = ledger.rows(SIZES)
    assert (row.timed_count, row.time_ms) == (1, 1.0)
