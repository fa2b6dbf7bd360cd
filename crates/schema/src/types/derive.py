#!/usr/bin/env python3
"""Derives `types.txt` from the struct tags of Kubernetes' public Go types.

Only needed when moving to another Kubernetes release:

    ./derive.py CHECKOUT < ../kind/builtin.txt > types.new && mv types.new types.txt

CHECKOUT is a checkout of the Kubernetes repository at that release. The kinds to cover are read
from the table of kinds; what subresources and deletions speak is added.
"""

import os
import re
import sys

EXTRA = ["autoscaling/v1.Scale", "policy/v1.Eviction", "authentication/v1.TokenRequest",
         "meta/v1.DeleteOptions", "meta/v1.Status", "meta/v1.ObjectMeta", "meta/v1.WatchEvent",
         "meta/v1.PartialObjectMetadata",
         "meta/v1.APIGroupList", "meta/v1.APIResourceList", "meta/v1.APIVersions"]

SCALARS = {"string": "s", "int32": "i", "int64": "l", "int": "l", "bool": "b", "float64": "f",
           "uint8": "i", "uint32": "l", "uint64": "l", "[]byte": "y"}

# Types with a spelling of their own in JSON.
SPECIAL = {
    "meta/v1.Time": "T", "meta/v1.MicroTime": "M", "resource.Quantity": "Q",
    "intstr.IntOrString": "I", "types.UID": "s", "types.NodeName": "s",
    "meta/v1.FieldsV1": "*", "apiextensions/v1.JSON": "*", "runtime.RawExtension": "*",
    "apiextensions/v1.JSONSchemaPropsOrArray": "A",
    "apiextensions/v1.JSONSchemaPropsOrBool": "B",
    "apiextensions/v1.JSONSchemaPropsOrStringArray": "C",
}


def packages(root):
    """Package names such as `core/v1`, and their folders."""
    staging = os.path.join(root, "staging/src/k8s.io")
    found = {
        "meta/v1": "apimachinery/pkg/apis/meta/v1",
        "apiextensions/v1": "apiextensions-apiserver/pkg/apis/apiextensions/v1",
        "apiregistration/v1": "kube-aggregator/pkg/apis/apiregistration/v1",
    }
    for group in os.listdir(os.path.join(staging, "api")):
        for version in ("v1", "v2"):
            path = f"api/{group}/{version}"
            if os.path.isdir(os.path.join(staging, path)):
                found[f"{group}/{version}"] = path
    return {name: os.path.join(staging, path) for name, path in found.items()}


def imports(source):
    """Local names of imported packages."""
    names = {}
    for name, path in re.findall(r'^(?:import)?\s*(\w*)\s*"(k8s\.io/[^"]+)"', source, re.M):
        api = re.match(r"k8s\.io/api/(\w+)/(v\d\w*)$", path)
        if api:
            package = "/".join(api.groups())
        elif path.endswith("apis/meta/v1"):
            package = "meta/v1"
        else:
            package = path.split("/")[-1]
        names[name or path.split("/")[-1]] = package
    return names


class Struct:
    def __init__(self, names, atomic):
        self.names, self.atomic, self.fields = names, atomic, []


def read_types(root):
    """Structs, and the Go types that other names stand for."""
    structs, aliases = {}, {}
    for package, folder in packages(root).items():
        for file in sorted(os.listdir(folder)):
            if file.endswith(".go") and "_test" not in file and "zz_" not in file \
                    and "generated" not in file:
                with open(os.path.join(folder, file), encoding="utf-8") as text:
                    read_file(package, text.read(), structs, aliases)
    return structs, aliases


def read_file(package, source, structs, aliases):
    names, comments, struct = imports(source), [], None
    for line in source.split("\n"):
        text = line.strip()
        if struct is not None:
            if line.rstrip() == "}":
                struct, comments = None, []
            elif text.startswith("//"):
                comments.append(text)
            elif text:
                field = re.match(r"^(?:(\w+)\s+)?(\S+?|.+?)\s+`(.*)`", text)
                if field:
                    struct.fields.append((field.group(2), field.group(3), "\n".join(comments)))
                comments = []
            continue
        opened = re.match(r"^type (\w+) struct ?\{(\})?", line)
        if opened:
            struct = Struct(names, any("+structType=atomic" in c for c in comments))
            structs[f"{package}.{opened.group(1)}"] = struct
            struct, comments = (None if opened.group(2) else struct), []
        elif text.startswith("//"):
            comments.append(text)
        elif text:
            comments = []
            alias = re.match(r"^type (\w+) =? ?(\S+)$", line)
            if alias and alias.group(2) not in ("interface{", "struct{"):
                aliases[f"{package}.{alias.group(1)}"] = (alias.group(2), names)


class Table:
    def __init__(self, structs, aliases):
        self.structs, self.aliases, self.wanted = structs, aliases, []

    def shape(self, go, package, names):
        """The shape of a Go type, and whether absent differs from zero."""
        if go.startswith("*"):
            return self.shape(go[1:], package, names)[0], True
        if go in SCALARS:
            return SCALARS[go], False
        if go.startswith("[]"):
            return "[" + self.shape(go[2:], package, names)[0], False
        entry = re.match(r"map\[[\w.]+\](.*)$", go)
        if entry:
            return "{" + self.shape(entry.group(1), package, names)[0], False
        name = f"{package}.{go}"
        if "." in go:
            local, short = go.split(".")
            name = f"{names.get(local, local)}.{short}"
        if name in SPECIAL:
            if SPECIAL[name] in "ABC":
                self.wanted.append("apiextensions/v1.JSONSchemaProps")
            return SPECIAL[name], False
        if name in self.aliases:
            go, names = self.aliases[name]
            shape, pointer = self.shape(go, name.split(".")[0], names)
            # The only named lists that are messages of their own in protobuf.
            return ("X" + shape if name.endswith(".ExtraValue") else shape), pointer
        if name not in self.structs:
            sys.exit(f"unknown type {name}")
        self.wanted.append(name)
        return "=" + name, False

    def rows(self, name):
        package, struct = name.split(".")[0], self.structs[name]
        for go, tags, comments in struct.fields:
            tag = dict(re.findall(r'(\w+):"([^"]*)"', tags))
            json = tag.get("json", "").split(",")
            if json[0] == "-":
                continue
            number = (tag.get("protobuf", "").split(",") + ["0", "0"])[1] or "0"
            if json[0] == "" and go.endswith("TypeMeta"):
                yield "TypeMeta"
                continue
            shape, pointer = self.shape(go, package, struct.names)
            if json[0] == "":
                yield f"{number} + {shape}"
                continue
            words = [number, json[0], shape, zero(shape, pointer, json, comments)]
            last = ["value"] if shape == "*" and not pointer else []
            yield " ".join(words + markers(tag, json, comments) + last)

    def write(self, roots):
        self.wanted, done = list(roots), {}
        while self.wanted:
            name = self.wanted.pop(0)
            if name not in done:
                done[name] = list(self.rows(name))
        for name, rows in sorted(done.items()):
            print(name + (" atomic" if self.structs[name].atomic else ""))
            for row in rows:
                print(" " + row.replace(f"={name.split('.')[0]}.", "="))


def zero(shape, pointer, json, comments):
    omit = "omitempty" in json
    if shape == "*":
        return "?"
    if pointer:
        return "?" if omit or "+optional" not in comments else "0"
    if "omitzero" in json:
        return "-"
    if shape in "TM":
        return "0"
    if shape[0] == "=" or shape in "QI":
        return "!"
    return "-" if omit else "!"


def markers(tag, json, comments):
    words = []
    if tag.get("patchStrategy"):
        key = tag.get("patchMergeKey", "")
        words.append("patch=" + tag["patchStrategy"] + (f":{key}" if key else ""))
    kind = re.search(r"\+listType=(\w+)", comments)
    if kind:
        keys = ",".join(re.findall(r"\+listMapKey=(\w+)", comments))
        words.append(f"list={kind.group(1)}" + (f":{keys}" if keys else ""))
    kind = re.search(r"\+(?:mapType|structType)=(\w+)", comments)
    if kind:
        words.append(f"map={kind.group(1)}")
    optional = "+optional" in comments or "+k8s:optional" in comments or "omitempty" in json
    if not optional or "+required" in comments and "omitempty" in json:
        words.append("req")
    return words


def roots(table_of_kinds):
    """Types of the kinds in `builtin.txt`."""
    package = ""
    for line in table_of_kinds:
        if not line.startswith(" "):
            group, _, version = line.strip().rpartition("/")
            package = f"{group.split('.')[0] or 'core'}/{version}"
        elif not line.startswith("   "):
            yield f"{package}.{line.split()[1]}"


def main():
    header = os.path.join(os.path.dirname(os.path.abspath(__file__)), "types.txt")
    with open(header, encoding="utf-8") as text:
        print("".join(line for line in text if line.startswith("#")), end="")
    Table(*read_types(sys.argv[1])).write(list(roots(sys.stdin)) + EXTRA)


main()
