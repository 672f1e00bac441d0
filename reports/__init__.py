"""From outcomes to pages: payload, HTML, Markdown, JSON."""
