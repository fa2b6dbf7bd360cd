"""A client of delta watches, written from docs/spec/delta-watch.md: follows ConfigMaps with deltas and
without, and compares the texts. The kubeconfig is in KUBECONFIG. Prints `ok` at the end."""
import json
import ssl
import urllib.request

from kubernetes import client, config

config.load_kube_config()
core, server = client.CoreV1Api(), client.Configuration.get_default_copy()
tls = ssl.create_default_context(cafile=server.ssl_ca_cert)
tls.load_cert_chain(server.cert_file, server.key_file)


def watch(accept):
    url = f"{server.host}/api/v1/namespaces/default/configmaps?watch=true&timeoutSeconds=300"
    return urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept}), context=tls)


def digest(text):
    value = 14695981039346656037
    for byte in text:
        value = (value ^ byte) * 1099511628211 % 2**64
    return f"{value:016x}"


def apply(text, old, new, *edits):
    rest = text.replace(b'"resourceVersion":"%s"' % old.encode(), b'"resourceVersion":"%s"' % new.encode(), 1)
    edits, result = list(edits), b""
    while edits:
        copied, replaced = edits.pop(0), edits.pop(0)
        inserted = (edits.pop(0) if isinstance(replaced, int) else replaced).encode()
        replaced = replaced if isinstance(replaced, int) else len(inserted)
        result, rest = result + rest[:copied] + inserted, rest[copied + replaced:]
    return result + rest


def follow(stream, end):
    """The texts by resourceVersion up to a version, and the number of deltas and of digests."""
    texts, deltas, digests = {}, 0, 0
    while end not in texts:
        line = stream.readline()
        event = json.loads(line)
        if "delta" in event:
            text = apply(texts.pop(event["delta"][0]), *event["delta"])
            texts[event["delta"][1]] = text
            deltas, digests = deltas + 1, digests + ("digest" in event)
            assert event.get("digest") in (None, digest(text)), event
            continue
        uid = event["object"]["metadata"]["uid"].encode()
        texts = {version: text for version, text in texts.items() if uid not in text}
        if event["type"] != "DELETED":
            version = event["object"]["metadata"]["resourceVersion"]
            texts[version] = line[line.index(b'"object":') + 9:line.rindex(b"}")]
    return texts, deltas, digests


def write(name, **data):
    body = {"metadata": {"labels": {"round": data["v"]}}, "data": data}
    return core.patch_namespaced_config_map(name, "default", body).metadata.resource_version


for name in ("a", "b", "c"):
    body = {"metadata": {"name": name}, "data": {"text": "é<&>" * 50, "v": "0"}}
    core.create_namespaced_config_map("default", body)
streams = [watch("application/json"), watch("application/json;delta=v1")]
for number in range(40):
    write("a" if number % 3 else "b", v=str(number), **{f"key{number % 5}": None if number % 2 else "ü"})
core.delete_namespaced_config_map("c", "default")
last = write("a", v="last")
(whole, none, _), (made, deltas, digests) = (follow(stream, last) for stream in streams)
assert made == whole and len(whole) in (2, 3), (made, whole)  # a, b and perhaps the CA of the namespace
assert none == 0 and deltas == 41 and 0 < digests < 20, (none, deltas, digests)
print("ok")
