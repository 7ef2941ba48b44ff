"""OAuth logins (SASL/OAUTHBEARER). Read, without effect so far.

Facts only: names, types, defaults and limits as Kafka 4.3 has them, what they mean in our words, and whether Tidelog
acts on them. One row per line; nothing is computed here.
"""

from __future__ import annotations

from tidelog.config.definition import Setting
from tidelog.config.tables.short import BOOLEAN, CLASS, INT, LIST, LONG, PASSWORD, STRING
from tidelog.config.validators import between, one_of

# fmt: off
SETTINGS: tuple[Setting, ...] = (
    Setting("sasl.oauthbearer.assertion.algorithm", STRING, "RS256", one_of("ES256", "RS256", any_case=True), "Algorithm that signs the client's assertion."),
    Setting("sasl.oauthbearer.assertion.claim.aud", STRING, None, None, "Audience claim of the assertion."),
    Setting("sasl.oauthbearer.assertion.claim.exp.seconds", INT, 300, between(0, 86400), "Seconds until the assertion expires."),
    Setting("sasl.oauthbearer.assertion.claim.iss", STRING, None, None, "Issuer claim of the assertion."),
    Setting("sasl.oauthbearer.assertion.claim.jti.include", BOOLEAN, False, None, "Give each assertion an id of its own."),
    Setting("sasl.oauthbearer.assertion.claim.nbf.seconds", INT, 60, between(0, 3600), "Seconds before now from which the assertion is valid."),
    Setting("sasl.oauthbearer.assertion.claim.sub", STRING, None, None, "Subject claim of the assertion."),
    Setting("sasl.oauthbearer.assertion.file", STRING, None, None, "File with a ready-made assertion."),
    Setting("sasl.oauthbearer.assertion.private.key.file", STRING, None, None, "File with the key that signs assertions."),
    Setting("sasl.oauthbearer.assertion.private.key.passphrase", PASSWORD, None, None, "Passphrase of the key that signs assertions."),
    Setting("sasl.oauthbearer.assertion.template.file", STRING, None, None, "File with further claims and headers of the assertion."),
    Setting("sasl.oauthbearer.client.credentials.client.id", STRING, None, None, "Client id for the client-credentials grant."),
    Setting("sasl.oauthbearer.client.credentials.client.secret", PASSWORD, None, None, "Client secret for the client-credentials grant."),
    Setting("sasl.oauthbearer.clock.skew.seconds", INT, 30, None, "Difference of clocks that is tolerated when a token is checked."),
    Setting("sasl.oauthbearer.expected.audience", LIST, (), None, "Audiences of which a token must name one."),
    Setting("sasl.oauthbearer.expected.issuer", STRING, None, None, "Issuer that a token must name."),
    Setting("sasl.oauthbearer.jwks.endpoint.refresh.ms", LONG, 3_600_000, None, "How often the provider's keys are fetched."),
    Setting("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", LONG, 100, None, "First pause after the provider's keys could not be fetched."),
    Setting("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", LONG, 10_000, None, "Longest pause after the provider's keys could not be fetched."),
    Setting("sasl.oauthbearer.jwks.endpoint.url", STRING, None, None, "Address of the provider's keys."),
    Setting("sasl.oauthbearer.jwt.retriever.class", CLASS, "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever", None, "Java class that obtains tokens."),
    Setting("sasl.oauthbearer.jwt.validator.class", CLASS, "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator", None, "Java class that checks tokens."),
    Setting("sasl.oauthbearer.scope", STRING, None, None, "Scope that is asked for at login."),
    Setting("sasl.oauthbearer.scope.claim.name", STRING, "scope", None, "Claim that holds a token's scope."),
    Setting("sasl.oauthbearer.sub.claim.name", STRING, "sub", None, "Claim that holds a token's subject."),
    Setting("sasl.oauthbearer.token.endpoint.url", STRING, None, None, "Address where tokens are obtained."),
)
# fmt: on
