"""Files of other tools in a run folder: which format is this, where does it lie, what does it hold?

    format      what a format is: how to tell it, its name in a run folder, a look into it
    known       the one list of formats; a new one is one line there
    detect      a file -> its format, by content; all such files of a run folder
    place       a file -> its place in a run folder, under the name that every reader looks for

Reading into tables stays with the readers: traces in `run/load.py`, files beside them in `run/side_files.py`. Both find
what lies in a run folder under whatever name through `detect.files_beside`.
"""
