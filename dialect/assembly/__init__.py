"""The text of the dialect: a short form of every op, of the type and of the scheme, beside MLIR's generic form.

Dialects that are defined in Python have no assembly hooks in MLIR, so the text is translated, token by token, on its
way to MLIR's parser and on its way from MLIR's printer:

- `scheme_names`: names such as `#mxfp8_1x32`
- `tokens`: what both directions read text with
- `spelling`: types and schemes, to and from their short form
- `formats`: the format string that each op declares
- `printer`, `reader`: whole modules
- `positions`: where in the user's text a place of the translated text came from
"""
