"""Operations: each is declared once, on a typed method, and runs in this process or over HTTP."""
