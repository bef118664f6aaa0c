"""Parses addresses of buckets, and explains errors of a store: whether waiting may help, and how to fix the error."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adapt.support.errors import ConfigError, StorageError

EXPIRED = {
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidAccessKeyId",
    "InvalidToken",
    "RequestExpired",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
    "UnauthorizedSSOTokenError",
    "SSOTokenLoadError",
    "TokenRetrievalError",
    "CredentialRetrievalError",
    "NoCredentialsError",
    "PartialCredentialsError",
}
"""Error codes and exceptions of boto3 for which new credentials may help."""
_BUSY = {"SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "Throttling", "ThrottlingException"}
_BUSY |= {"OperationAborted", "ConditionalRequestConflict", "BadDigest", "IncompleteBody", "TooManyRequests"}
_CONFLICT = {"PreconditionFailed", "412", "NoSuchUpload"}
MISSING = {"NoSuchKey", "NotFound", "404"}
_PART_OF_PREFIX = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9._=-]*")


class ConflictError(StorageError):
    """An object is not in the state that a conditional write requires. The write changed nothing."""


@dataclass(frozen=True)
class Address:
    """A bucket and a prefix in it, written `s3://BUCKET/PREFIX`."""

    bucket: str
    prefix: str
    """Beginning of the names of all objects, without leading and trailing slashes. It may be empty."""

    @classmethod
    def of(cls, url: str) -> "Address":
        """Parses a URL.

        Raises:
            ConfigError: the URL does not name an S3 bucket, or has characters that file names cannot have.
        """
        scheme, _, place = url.partition("://")
        bucket, *parts = place.strip("/").split("/")
        if scheme != "s3" or not re.fullmatch(r"[a-z0-9][a-z0-9.-]+", bucket):
            raise ConfigError(
                f"storage.root {url} is not of the form s3://BUCKET/PREFIX",
                "name a folder or an S3 bucket; for other stores, name the folder where the bucket is mounted",
            )
        for part in parts:
            if not _PART_OF_PREFIX.fullmatch(part):
                raise ConfigError(
                    f"storage.root {url}: {part or 'an empty part'} cannot be a part of the prefix",
                    "use only letters, digits and the characters . _ = -, and begin no part with a dot",
                )
        return cls(bucket, "/".join(parts))

    def url(self, name: str = "") -> str:
        """Returns the URL of an object, or of the prefix if `name` is empty."""
        return "/".join(part for part in (f"s3://{self.bucket}", self.prefix, name) if part)

    def key(self, name: str) -> str:
        """Returns the name of an object in its bucket."""
        return f"{self.prefix}/{name}" if self.prefix else name


def awaited(address: Address, doing: str, error: Exception) -> str:
    """Returns the suggested fix if waiting may help against an error of the store. Raises all other errors.

    Args:
        address: bucket and prefix.
        doing: what the request does, for messages.
        error: the error of boto3 or of the network.

    Raises:
        ConflictError: the object is not in the state that a conditional write requires.
        StorageError: waiting does not help.
        Exception: `error`, if the store did not cause it.
    """
    code = code_of(error)
    if code in _CONFLICT or (code in MISSING and "write" in doing):
        raise ConflictError(
            f"cannot {doing}: another process has changed the object meanwhile", "run the same command again"
        ) from error
    if code in ("NotImplemented", "501"):
        raise unconditional(address, reason_of(error)) from error
    if code == "NoSuchBucket":
        raise StorageError(
            f"cannot {doing}: there is no bucket {address.bucket}", "create it, or correct storage.root"
        ) from error
    if code in ("AccessDenied", "403", "AllAccessDisabled", "Forbidden", "MethodNotAllowed"):
        raise StorageError(
            f"cannot {doing}: access is denied",
            "allow s3:GetObject, s3:PutObject, s3:DeleteObject, s3:ListBucket, s3:AbortMultipartUpload and"
            " s3:ListBucketMultipartUploads, or point storage.root elsewhere",
        ) from error
    if code == "RequestTimeTooSkewed":
        return "set the clock of this machine, which differs from the store's by over 15 minutes"
    if code in ("NoCredentialsError", "PartialCredentialsError"):
        return "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, fill in ~/.aws/credentials, or give the machine a role"
    if code in EXPIRED:
        return (
            "renew the credentials in AWS's files or the machine's role; those in environment variables cannot change"
            " during a run"
        )
    if code in _BUSY or code.startswith("5") or _is_lost(error):
        return "check that the store can be reached"
    if isinstance(error, OSError) or _module(error) not in ("boto3", "botocore"):
        raise error
    raise StorageError(f"cannot {doing}: {reason_of(error)}", "check storage.root and the store") from error


def code_of(error: Exception) -> str:
    """Returns the store's code of an error. If there is no code, returns the name of the exception."""
    response: Any = getattr(error, "response", None)
    if not isinstance(response, Mapping):
        return type(error).__name__
    code = str(response.get("Error", {}).get("Code") or "")
    status = str(response.get("ResponseMetadata", {}).get("HTTPStatusCode") or "")
    return status if not code or (status == "412" and code not in _CONFLICT) else code


def reason_of(error: Exception) -> str:
    """Returns the message of an error in one line."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, Mapping):
        return f"{code_of(error)} {response.get('Error', {}).get('Message') or ''}".strip()
    return (str(error).splitlines() or [type(error).__name__])[0]


def _module(error: Exception) -> str:
    return type(error).__module__.partition(".")[0]


def _is_lost(error: Exception) -> bool:
    """Returns whether the connection to the store failed or broke."""
    if isinstance(error, ConnectionError | TimeoutError) or _module(error) in ("urllib3", "http"):
        return True
    return any(
        kind.__name__ in ("HTTPClientError", "ConnectionError", "IncompleteReadError", "FlexibleChecksumError")
        for kind in type(error).__mro__
        if kind.__module__.startswith("botocore")
    )


def unconditional(address: Address, why: str) -> StorageError:
    """Returns the error for a store that does not support conditional writes."""
    return StorageError(
        f"the store of {address.url()} does not support conditional writes ({why}), without which two runs could"
        " overwrite each other's results",
        "use a store that supports If-None-Match and If-Match in PUT requests (Amazon S3, MinIO, Cloudflare R2), or a"
        " folder",
    )
