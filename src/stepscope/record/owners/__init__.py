"""Whose line it is: one step with Python frames after the window, and what its event tree says.

frame_step     watches the step, then hands the file over
event_tree     torch's tree of events -> calls and operators with their stacks
stacks         stacks of the user's frames, each kept once
places         file names as torch shortens them -> paths; the user's, a library's or ours
threads        operators in columns, one table per thread; Python time between them
module_paths   module objects -> their paths in the model
buckets        DDP's gradient buckets -> parameters
source         the text of the user's files
"""
