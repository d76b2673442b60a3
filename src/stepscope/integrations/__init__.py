"""In the job: the recorder inside other people's training loops, one file per framework, imported only when named."""
