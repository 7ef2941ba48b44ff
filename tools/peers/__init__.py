"""Brokers that the bench and the outside-in tests run as processes: Apache Kafka and Tidelog itself."""
