"""The metrics page: made of what requests left behind and of the state of the gateway, at each scrape."""
