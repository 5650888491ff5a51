"""One file for each word after `proxrl`: the flags it takes, and the call it makes."""
