"""The rows, by theme. `tidelog.config.broker_settings`, `topic_settings` and `group_settings` join them."""
