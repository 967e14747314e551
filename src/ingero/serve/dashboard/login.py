"""The form that asks for the token: plain HTML, so that it works without the page."""

from __future__ import annotations

_FORM = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>ingero: log in</title>
<link rel="stylesheet" href="/assets/page.css">
</head>
<body class="login">
<main>
<h1>ingero</h1>
<form method="post" action="/login">
{wrong}<label for="token">Token (INGERO_DASHBOARD_TOKEN of the server)</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button type="submit">Log in</button>
</form>
</main>
</body>
</html>
"""
_WRONG = '<p role="alert" class="error">That is not the token.</p>\n'


def login_page(*, is_wrong: bool) -> str:
    """The form. is_wrong: after a wrong token."""
    return _FORM.replace("{wrong}", _WRONG if is_wrong else "")
