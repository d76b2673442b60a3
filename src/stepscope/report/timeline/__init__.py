"""All ranks on one clock as tracks of slices, filtered to what a viewer can open, written as Perfetto's protobuf or
as Chrome's JSON."""
