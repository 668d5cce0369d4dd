"""``report.html``: what a simulation found, in pictures. One file, made of a result and its placements alone."""
