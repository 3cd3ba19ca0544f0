// A library target needs one source.
