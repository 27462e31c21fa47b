"""An issuer of tokens: keys, their key set, and tokens, valid and invalid."""

import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

ISSUER = "https://login.example.org/"
AUDIENCE = "streams"


class Issuer:
    """Signs with an RSA key, `rsa`, and one on a curve, `ec`, in whose names `kid` is."""

    def __init__(self) -> None:
        self.rsa = rsa.generate_private_key(65537, 2048)
        self.ec = ec.generate_private_key(ec.SECP256R1())

    def key_set(self, **more: Any) -> dict[str, Any]:
        """Return the key set for verifiers; `more` is added to the RSA key."""
        return {
            "keys": [
                RSAAlgorithm.to_jwk(self.rsa.public_key(), as_dict=True) | {"kid": "rsa", "use": "sig"} | more,
                ECAlgorithm.to_jwk(self.ec.public_key(), as_dict=True) | {"kid": "ec", "alg": "ES256"},
                {"kty": "oct", "kid": "shared", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA"},
            ]
        }

    def write(self, path: Path) -> str:
        """Keep the key set in a file; its URL."""
        path.write_text(json.dumps(self.key_set()))
        return path.as_uri()

    def token(
        self,
        name: str = "jane",
        *,
        key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | None = None,
        algorithm: str = "RS256",
        kid: str | None = "rsa",
        now: float | None = None,
        **claims: Any,
    ) -> str:
        """A token that is good for an hour, but for what is given; a claim of None is left out."""
        at = int(time.time() if now is None else now)
        said = {"sub": name, "iss": ISSUER, "aud": AUDIENCE, "iat": at, "exp": at + 3600} | claims
        return jwt.encode(
            {claim: value for claim, value in said.items() if value is not None},
            key or (self.ec if kid == "ec" else self.rsa),
            algorithm,
            {} if kid is None else {"kid": kid},
        )
