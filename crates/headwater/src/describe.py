#!/usr/bin/env python3
"""Derives `descriptions.txt` from the OpenAPI document of Kubernetes.

Only needed when moving to another Kubernetes release:

    ./describe.py CHECKOUT > descriptions.txt

CHECKOUT is a checkout of the Kubernetes repository at that release. A line has the short name of
a type or field, a tab, and its description with line ends written `\\n`. Lists and unstable
versions are left out: they are not served.
"""

import json
import re
import sys

with open(f"{sys.argv[1]}/api/openapi-spec/swagger.json", encoding="utf-8") as file:
    definitions = json.load(file)["definitions"]

for name, schema in sorted(definitions.items()):
    group, version, kind = name.split(".")[-3:]
    is_list = kind.endswith("List") and "x-kubernetes-group-version-kind" in schema
    if is_list and not kind.startswith("API") or re.search("alpha|beta", version):
        continue
    fields = sorted(schema.get("properties", {}).items())
    described = [("", schema)] + [("." + field, of) for field, of in fields]
    for suffix, of in described:
        if "description" in of:
            text = of["description"].replace("\n", "\\n")
            print(f"{group}.{version}.{kind}{suffix}\t{text}")
