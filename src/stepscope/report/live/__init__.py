"""A running job for people: one screen that is drawn again and again, or one plain line per look where nobody watches.

screen    both of them, from the same picture
page      the same as a web page that the browser asks for again and again
"""
