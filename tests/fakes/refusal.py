"""A refusal in the provider's own words."""

from __future__ import annotations


class Refusal(Exception):
    def __init__(self, message, *, status=400, code=None, param=None, is_expected=False):
        super().__init__(message)
        self.message, self.status, self.code, self.param, self.is_expected = message, status, code, param, is_expected

    def body(self, path):
        error = {"type": "invalid_request_error", "message": self.message}
        if path == "/v1/messages":
            return {"type": "error", "error": error}
        return {"error": {**error, "code": self.code, "param": self.param}}
