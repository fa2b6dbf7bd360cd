"""The Python client against a server whose kubeconfig is in KUBECONFIG: list, watch, create, patch,
delete. Prints `ok` at the end; anything unexpected is an exception."""
from kubernetes import client, config, watch

config.load_kube_config()
core = client.CoreV1Api()

names = [item.metadata.name for item in core.list_namespace().items]
assert "default" in names and "kube-system" in names, names

first = core.list_namespaced_config_map("default")
body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="a"), data={"v": "1"})
made = core.create_namespaced_config_map("default", body)
assert made.metadata.uid and made.data == {"v": "1"}, made

try:
    core.create_namespaced_config_map("default", body)
    raise AssertionError("it was created twice")
except client.ApiException as error:
    assert error.status == 409 and error.reason, error

patched = core.patch_namespaced_config_map("a", "default", {"metadata": {"labels": {"l": "1"}}})
assert patched.metadata.labels == {"l": "1"}, patched
selected = core.list_namespaced_config_map("default", label_selector="l=1")
assert [item.metadata.name for item in selected.items] == ["a"], selected

made.data = {"v": "2"}
try:
    core.replace_namespaced_config_map("a", "default", made)
    raise AssertionError("an old version was written")
except client.ApiException as error:
    assert error.status == 409, error

core.delete_namespaced_config_map("a", "default")
seen = []
stream = watch.Watch().stream(
    core.list_namespaced_config_map, "default",
    resource_version=first.metadata.resource_version, timeout_seconds=30)
for event in stream:
    seen.append(event["type"])
    if event["type"] == "DELETED":
        break
assert seen == ["ADDED", "MODIFIED", "DELETED"], seen

page = core.list_namespace(limit=2)
rest = core.list_namespace(limit=500, _continue=page.metadata._continue)
assert len(page.items) == 2 and len(page.items) + len(rest.items) == len(names)
print("ok")
