"""The scanner: a block of trace text in, columns out. C compiled to WebAssembly, run in a sandbox by wasmtime.

`Scanner` is one instance with its own memory and its own table of strings: one per thread. Calls release the GIL.
`scanner.wasm` is built from the C files here by `tools/build_scanner.py`:

    scanner.c     what the host calls, and the loop over a block's events
    shape.h       events that repeat, by comparing     columns.h   the rows being filled
    event.h       one event into the next row          waits.h     earliest times in a graph, for the replay
    recover.h     what happens where an event is bad   call_stack.h   who encloses whom
    text.h        where strings and values end         decimal.h   numbers, exactly
    intern.h      the table of distinct texts          memory.h    memory, loads and compares
    packets.h     Perfetto traces: packets of protobuf, in place of the loop over events

What runs the module is imported where it runs: `Scanner` from `scanner.scanner`, `WaitGraph` from `scanner.waits`.
"""
