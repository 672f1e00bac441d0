"""Two or more measurements of the same work side by side: metrics, steps, operators, host trees."""
