"""TLS, SASL, tokens and authorization. Only PLAINTEXT listeners are served so far, so these settings are read and have no effect.

Facts only: names, types, defaults and limits as Kafka 4.3 has them, what they mean in our words, and whether Tidelog
acts on them. One row per line; nothing is computed here.
"""

from __future__ import annotations

from tidelog.config.definition import Setting
from tidelog.config.tables.short import (
    BOOLEAN,
    CLASS,
    DOUBLE,
    INT,
    LIST,
    LONG,
    PASSWORD,
    PER_BROKER,
    REFUSED,
    SHORT,
    STRING,
)
from tidelog.config.validators import at_least, one_of

# fmt: off
SETTINGS: tuple[Setting, ...] = (
    Setting("authorizer.class.name", STRING, "", None, "The class that decides who may do what. Tidelog cannot run Java classes and refuses to ignore a rule about access.", effect=REFUSED),
    Setting("principal.builder.class", CLASS, "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder", None, "Java class that names the user of a connection.", update=PER_BROKER),
    Setting("security.providers", STRING, None, None, "Java security providers to load."),
    Setting("connections.max.reauth.ms", LONG, 0, None, "How long a SASL session lasts before the client must authenticate again. 0 means for ever."),
    Setting("delegation.token.secret.key", PASSWORD, None, None, "Secret that delegation tokens are signed with."),
    Setting("delegation.token.expiry.check.interval.ms", LONG, 3_600_000, at_least(1), "How often expired delegation tokens are removed."),
    Setting("delegation.token.expiry.time.ms", LONG, 86_400_000, at_least(1), "How long a delegation token is valid before it must be renewed."),
    Setting("delegation.token.max.lifetime.ms", LONG, 604_800_000, at_least(1), "How long a delegation token can be renewed."),
    Setting("sasl.enabled.mechanisms", LIST, ("GSSAPI",), None, "SASL mechanisms that clients may use.", update=PER_BROKER),
    Setting("sasl.mechanism.inter.broker.protocol", STRING, "GSSAPI", None, "SASL mechanism between brokers.", update=PER_BROKER),
    Setting("sasl.mechanism.controller.protocol", STRING, "GSSAPI", None, "SASL mechanism between brokers and controllers."),
    Setting("sasl.jaas.config", PASSWORD, None, None, "Login of the SASL mechanisms, in JAAS syntax.", update=PER_BROKER),
    Setting("sasl.server.max.receive.size", INT, 524_288, None, "Largest SASL message that is read before a client is authenticated."),
    Setting("sasl.server.callback.handler.class", CLASS, None, None, "Java class that checks SASL credentials on the server."),
    Setting("sasl.client.callback.handler.class", CLASS, None, None, "Java class that supplies SASL credentials to a client."),
    Setting("sasl.login.callback.handler.class", CLASS, None, None, "Java class that supplies credentials at login."),
    Setting("sasl.login.class", CLASS, None, None, "Java class that performs the login."),
    Setting("sasl.login.connect.timeout.ms", INT, None, None, "How long connecting to the authentication provider may take."),
    Setting("sasl.login.read.timeout.ms", INT, None, None, "How long reading from the authentication provider may take."),
    Setting("sasl.login.refresh.buffer.seconds", SHORT, 300, None, "Time left before a credential expires when it is refreshed at the latest.", update=PER_BROKER),
    Setting("sasl.login.refresh.min.period.seconds", SHORT, 60, None, "Shortest time between two refreshes of a credential.", update=PER_BROKER),
    Setting("sasl.login.refresh.window.factor", DOUBLE, 0.8, None, "Share of a credential's life after which it is refreshed.", update=PER_BROKER),
    Setting("sasl.login.refresh.window.jitter", DOUBLE, 0.05, None, "Random share added to the refresh time of a credential.", update=PER_BROKER),
    Setting("sasl.login.retry.backoff.ms", LONG, 100, None, "First pause after a failed login."),
    Setting("sasl.login.retry.backoff.max.ms", LONG, 10_000, None, "Longest pause after failed logins."),
    Setting("sasl.kerberos.kinit.cmd", STRING, "/usr/bin/kinit", None, "Path of the kinit program.", update=PER_BROKER),
    Setting("sasl.kerberos.min.time.before.relogin", LONG, 60_000, None, "Pause between two refreshes of a Kerberos ticket, in ms.", update=PER_BROKER),
    Setting("sasl.kerberos.principal.to.local.rules", LIST, ("DEFAULT",), None, "Rules that turn Kerberos principals into user names.", update=PER_BROKER),
    Setting("sasl.kerberos.service.name", STRING, None, None, "Kerberos name of the service.", update=PER_BROKER),
    Setting("sasl.kerberos.ticket.renew.jitter", DOUBLE, 0.05, None, "Random share added to the renewal time of a Kerberos ticket.", update=PER_BROKER),
    Setting("sasl.kerberos.ticket.renew.window.factor", DOUBLE, 0.8, None, "Share of a Kerberos ticket's life after which it is renewed.", update=PER_BROKER),
    Setting("ssl.protocol", STRING, "TLSv1.3", None, "TLS version used to build the context.", update=PER_BROKER),
    Setting("ssl.enabled.protocols", LIST, ("TLSv1.2", "TLSv1.3"), None, "TLS versions that are accepted.", update=PER_BROKER),
    Setting("ssl.cipher.suites", LIST, (), None, "Cipher suites that are accepted. Empty: the library's choice.", update=PER_BROKER),
    Setting("ssl.client.auth", STRING, "none", one_of("required", "requested", "none"), "Whether clients must, may or need not show a certificate.", update=PER_BROKER),
    Setting("ssl.endpoint.identification.algorithm", STRING, "https", None, "How a server's name is checked against its certificate. Empty switches the check off.", update=PER_BROKER),
    Setting("ssl.engine.factory.class", CLASS, None, None, "Java class that creates TLS engines.", update=PER_BROKER),
    Setting("ssl.key.password", PASSWORD, None, None, "Password of the private key.", update=PER_BROKER),
    Setting("ssl.keymanager.algorithm", STRING, "SunX509", None, "Java's key manager algorithm.", update=PER_BROKER),
    Setting("ssl.keystore.certificate.chain", PASSWORD, None, None, "Certificate chain in PEM form.", update=PER_BROKER),
    Setting("ssl.keystore.key", PASSWORD, None, None, "Private key in PEM form.", update=PER_BROKER),
    Setting("ssl.keystore.location", STRING, None, None, "File that holds private key and certificate.", update=PER_BROKER),
    Setting("ssl.keystore.password", PASSWORD, None, None, "Password of the key store.", update=PER_BROKER),
    Setting("ssl.keystore.type", STRING, "JKS", None, "Format of the key store.", update=PER_BROKER),
    Setting("ssl.principal.mapping.rules", STRING, "DEFAULT", None, "Rules that turn certificate names into user names."),
    Setting("ssl.provider", STRING, None, None, "Java's TLS provider.", update=PER_BROKER),
    Setting("ssl.secure.random.implementation", STRING, None, None, "Java's random source for TLS.", update=PER_BROKER),
    Setting("ssl.trustmanager.algorithm", STRING, "PKIX", None, "Java's trust manager algorithm.", update=PER_BROKER),
    Setting("ssl.truststore.certificates", PASSWORD, None, None, "Trusted certificates in PEM form.", update=PER_BROKER),
    Setting("ssl.truststore.location", STRING, None, None, "File that holds trusted certificates.", update=PER_BROKER),
    Setting("ssl.truststore.password", PASSWORD, None, None, "Password of the trust store.", update=PER_BROKER),
    Setting("ssl.truststore.type", STRING, "JKS", None, "Format of the trust store.", update=PER_BROKER),
    Setting("ssl.allow.dn.changes", BOOLEAN, False, None, "Let a new key store carry another distinguished name."),
    Setting("ssl.allow.san.changes", BOOLEAN, False, None, "Let a new key store carry other alternative names."),
)
# fmt: on
