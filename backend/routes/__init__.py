"""The API's routes, one file a noun; each has a `router`, and whatever lies here is served."""
