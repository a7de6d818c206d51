"""A web server on this machine, for tests of downloads."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """Serves ``files``; ``breaks`` cuts answers off after so many bytes, ``ranges`` says whether pieces are sent."""

    def __init__(self):
        self.files = {}
        self.breaks = None
        self.ranges = True
        self.asked = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append((self.path, self.headers.get("Range")))
                content = outer.files.get(self.path.lstrip("/"))
                if content is None:
                    self.send_error(404)
                    return
                begin = 0
                if outer.ranges and self.headers.get("Range"):
                    begin = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
                    if begin >= len(content):
                        self.send_error(416)
                        return
                    self.send_response(206)
                    self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
                else:
                    self.send_response(200)
                self.send_header("Content-Length", str(len(content) - begin))
                self.end_headers()
                self.wfile.write(content[begin : None if outer.breaks is None else begin + outer.breaks])

            def log_message(self, *arguments):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *reason):
        self.http.shutdown()
        self.http.server_close()
