//! The columns of each built-in kind.

use std::borrow::Cow;

use super::cells;
use super::{Cell, Column};
use crate::table::Cell::{Age, Compute, Count, Flag, Number, Text};

const fn column(
    name: &'static str,
    kind: &'static str,
    description: &'static str,
    cell: Cell,
) -> Column {
    Column {
        name: Cow::Borrowed(name),
        kind: Cow::Borrowed(kind),
        format: Cow::Borrowed(""),
        description: Cow::Borrowed(description),
        priority: 0,
        cell,
    }
}

const fn text(name: &'static str, description: &'static str, cell: Cell) -> Column {
    column(name, "string", description, cell)
}

const fn integer(name: &'static str, description: &'static str, cell: Cell) -> Column {
    column(name, "integer", description, cell)
}

const fn boolean(name: &'static str, description: &'static str, cell: Cell) -> Column {
    column(name, "boolean", description, cell)
}

/// A column of wide output only.
const fn wide(name: &'static str, description: &'static str, cell: Cell) -> Column {
    Column {
        name: Cow::Borrowed(name),
        kind: Cow::Borrowed("string"),
        format: Cow::Borrowed(""),
        description: Cow::Borrowed(description),
        priority: 1,
        cell,
    }
}

/// A column that clients show as the object's name.
const fn named(name: &'static str, description: &'static str, priority: i32, cell: Cell) -> Column {
    Column {
        name: Cow::Borrowed(name),
        kind: Cow::Borrowed("string"),
        format: Cow::Borrowed("name"),
        description: Cow::Borrowed(description),
        priority,
        cell,
    }
}

// These three texts are compared byte for byte with recordings of Kubernetes.
const NAME_TEXT: &str = "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";
const AGE_TEXT: &str = "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";
const DATA_TEXT: &str = "Data contains the configuration data. Each key must consist of alphanumeric characters, '-', '_' or '.'. Values with non-UTF-8 byte sequences must use the BinaryData field. The keys stored in Data must not overlap with the keys in the BinaryData field, this is enforced during validation process.";

pub(super) const NAME: Column = named("Name", NAME_TEXT, 0, Text("metadata.name", ""));
pub(super) const AGE: Column = text("Age", AGE_TEXT, Age("metadata.creationTimestamp"));
const CREATED: Column =
    column("Created At", "date", AGE_TEXT, Text("metadata.creationTimestamp", "<unknown>"));
const CONTAINERS: Column =
    wide("Containers", "Names of the template's containers", Compute(cells::container_names));
const IMAGES: Column =
    wide("Images", "Images of the template's containers", Compute(cells::container_images));
const SELECTOR: Column =
    wide("Selector", "Labels of the pods that belong to it", Compute(cells::label_selector));

const BINDING: &[Column] = &[
    NAME,
    text("Role", "Role that it grants", Compute(cells::role)),
    AGE,
    wide("Users", "Users it grants to", Compute(cells::users)),
    wide("Groups", "Groups it grants to", Compute(cells::groups)),
    wide("ServiceAccounts", "Service accounts it grants to", Compute(cells::service_accounts)),
];
const WEBHOOKS: &[Column] =
    &[NAME, integer("Webhooks", "How many webhooks it has", Count("webhooks")), AGE];
const POLICY_BINDING: &[Column] = &[
    NAME,
    text("PolicyName", "Policy that it binds", Text("spec.policyName", "")),
    text("ParamRef", "Parameters it binds it to", Compute(cells::parameter_reference)),
    AGE,
];

/// Both versions of events have the same columns.
const EVENT: &[Column] = &[
    text("Last Seen", "When it was last seen", Compute(cells::event_last_seen)),
    text("Type", "Normal or Warning", Text("type", "")),
    text("Reason", "Short reason for programs", Text("reason", "")),
    text("Object", "What it is about", Compute(cells::event_object)),
    wide("Subobject", "Part of the object", Compute(cells::event_subobject)),
    wide("Source", "Who reported it", Compute(cells::event_source)),
    text("Message", "What happened", Compute(cells::event_message)),
    wide("First Seen", "When it was first seen", Compute(cells::event_first_seen)),
    wide("Count", "How often it was seen", Compute(cells::event_count)),
    named("Name", NAME_TEXT, 1, Text("metadata.name", "")),
];

/// Every kind with columns of its own: group, kind, columns.
const TABLE: &[(&str, &str, &[Column])] = &[
    (
        "",
        "Pod",
        &[
            NAME,
            text("Ready", "Ready containers of all containers", Compute(cells::pod_ready)),
            text("Status", "What the pod is doing", Compute(cells::pod_status)),
            text("Restarts", "How often containers were restarted", Compute(cells::pod_restarts)),
            AGE,
            wide("IP", "Address of the pod", Compute(cells::pod_ip)),
            wide("Node", "Node that runs the pod", Text("spec.nodeName", "<none>")),
            wide(
                "Nominated Node",
                "Node where room is being made",
                Text("status.nominatedNodeName", "<none>"),
            ),
            wide(
                "Readiness Gates",
                "Gates that are open of all gates",
                Compute(cells::readiness_gates),
            ),
        ],
    ),
    (
        "",
        "PodTemplate",
        &[
            NAME,
            text(
                "Containers",
                "Names of the template's containers",
                Compute(cells::container_names),
            ),
            text("Images", "Images of the template's containers", Compute(cells::container_images)),
            text("Pod Labels", "Labels of the template", Compute(cells::template_labels)),
        ],
    ),
    (
        "",
        "ReplicationController",
        &[
            NAME,
            integer("Desired", "Wanted pods", Number("spec.replicas")),
            integer("Current", "Pods there are", Number("status.replicas")),
            integer("Ready", "Pods that are ready", Number("status.readyReplicas")),
            AGE,
            CONTAINERS,
            IMAGES,
            wide(
                "Selector",
                "Labels of the pods that belong to it",
                Compute(cells::plain_selector),
            ),
        ],
    ),
    (
        "",
        "Service",
        &[
            NAME,
            text("Type", "How the service is reached", Text("spec.type", "")),
            text("Cluster-IP", "Address inside the cluster", Compute(cells::cluster_ip)),
            text("External-IP", "Addresses outside the cluster", Compute(cells::external_ip)),
            text("Port(s)", "Ports with their protocols", Compute(cells::service_ports)),
            AGE,
            wide("Selector", "Labels of the pods behind it", Compute(cells::plain_selector)),
        ],
    ),
    (
        "",
        "Endpoints",
        &[
            NAME,
            text("Endpoints", "Addresses and ports behind the service", Compute(cells::endpoints)),
            AGE,
        ],
    ),
    (
        "",
        "Node",
        &[
            NAME,
            text("Status", "Whether the node is ready", Compute(cells::node_status)),
            text("Roles", "Roles that its labels give it", Compute(cells::node_roles)),
            AGE,
            text("Version", "Version of its kubelet", Text("status.nodeInfo.kubeletVersion", "")),
            wide("Internal-IP", "Address inside the cluster", Compute(cells::node_internal_ip)),
            wide("External-IP", "Address outside the cluster", Compute(cells::node_external_ip)),
            wide("OS-Image", "Operating system", Text("status.nodeInfo.osImage", "<unknown>")),
            wide("Kernel-Version", "Kernel", Compute(cells::node_kernel)),
            wide(
                "Container-Runtime",
                "Container runtime",
                Text("status.nodeInfo.containerRuntimeVersion", "<unknown>"),
            ),
        ],
    ),
    ("", "Event", EVENT),
    (
        "",
        "Namespace",
        &[NAME, text("Status", "Phase of the namespace", Text("status.phase", "")), AGE],
    ),
    (
        "",
        "Secret",
        &[
            NAME,
            text("Type", "What the secret is for", Text("type", "")),
            text("Data", "How many values it holds", Count("data")),
            AGE,
        ],
    ),
    ("", "ConfigMap", &[NAME, text("Data", DATA_TEXT, Compute(cells::config_map_data)), AGE]),
    ("", "ServiceAccount", &[NAME, AGE]),
    (
        "",
        "PersistentVolume",
        &[
            NAME,
            text("Capacity", "How much it holds", Text("spec.capacity.storage", "0")),
            text("Access Modes", "How it may be mounted", Compute(cells::spec_access_modes)),
            text(
                "Reclaim Policy",
                "What happens when it is released",
                Text("spec.persistentVolumeReclaimPolicy", ""),
            ),
            text("Status", "Phase of the volume", Compute(cells::phase)),
            text("Claim", "Claim it is bound to", Compute(cells::volume_claim)),
            text("StorageClass", "Storage class", Compute(cells::volume_class)),
            text(
                "VolumeAttributesClass",
                "Attributes class",
                Text("spec.volumeAttributesClassName", "<unset>"),
            ),
            text("Reason", "Why it is in its phase", Text("status.reason", "")),
            AGE,
            wide("VolumeMode", "File system or block device", Text("spec.volumeMode", "<unset>")),
        ],
    ),
    (
        "",
        "PersistentVolumeClaim",
        &[
            NAME,
            text("Status", "Phase of the claim", Compute(cells::phase)),
            text("Volume", "Volume it is bound to", Text("spec.volumeName", "")),
            text("Capacity", "How much the volume holds", Compute(cells::claim_capacity)),
            text("Access Modes", "How it may be mounted", Compute(cells::claim_access_modes)),
            text("StorageClass", "Storage class", Compute(cells::volume_class)),
            text(
                "VolumeAttributesClass",
                "Attributes class",
                Text("spec.volumeAttributesClassName", "<unset>"),
            ),
            AGE,
            wide("VolumeMode", "File system or block device", Text("spec.volumeMode", "<unset>")),
        ],
    ),
    (
        "",
        "ComponentStatus",
        &[
            NAME,
            text("Status", "Whether the component is healthy", Compute(cells::component_status)),
            text("Message", "What it says", Compute(cells::component_message)),
            text("Error", "What is wrong", Compute(cells::component_error)),
        ],
    ),
    (
        "",
        "ResourceQuota",
        &[
            NAME,
            text("Request", "Use of what may be requested", Compute(cells::quota_requests)),
            text("Limit", "Use of limits", Compute(cells::quota_limits)),
            AGE,
        ],
    ),
    (
        "apps",
        "Deployment",
        &[
            NAME,
            text("Ready", "Ready pods of wanted pods", Compute(cells::ready_of_wanted)),
            text("Up-to-date", "Pods of the newest template", Number("status.updatedReplicas")),
            text(
                "Available",
                "Pods that have been ready for long enough",
                Number("status.availableReplicas"),
            ),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
    ),
    (
        "apps",
        "ReplicaSet",
        &[
            NAME,
            integer("Desired", "Wanted pods", Number("spec.replicas")),
            integer("Current", "Pods there are", Number("status.replicas")),
            integer("Ready", "Pods that are ready", Number("status.readyReplicas")),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
    ),
    (
        "apps",
        "StatefulSet",
        &[
            NAME,
            text("Ready", "Ready pods of wanted pods", Compute(cells::ready_of_wanted)),
            AGE,
            CONTAINERS,
            IMAGES,
        ],
    ),
    (
        "apps",
        "DaemonSet",
        &[
            NAME,
            integer("Desired", "Nodes that should run it", Number("status.desiredNumberScheduled")),
            integer("Current", "Nodes that run it", Number("status.currentNumberScheduled")),
            integer("Ready", "Nodes where it is ready", Number("status.numberReady")),
            integer(
                "Up-to-date",
                "Nodes with the newest template",
                Number("status.updatedNumberScheduled"),
            ),
            integer("Available", "Nodes where it is available", Number("status.numberAvailable")),
            text("Node Selector", "Labels of the nodes that run it", Compute(cells::node_selector)),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
    ),
    (
        "apps",
        "ControllerRevision",
        &[
            NAME,
            text("Controller", "Who controls it", Compute(cells::controller)),
            text("Revision", "Number of the revision", Number("revision")),
            AGE,
        ],
    ),
    (
        "batch",
        "Job",
        &[
            NAME,
            text("Status", "What the job is doing", Compute(cells::job_status)),
            text(
                "Completions",
                "Pods that succeeded of wanted ones",
                Compute(cells::job_completions),
            ),
            text("Duration", "How long it took", Compute(cells::job_duration)),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
    ),
    (
        "batch",
        "CronJob",
        &[
            NAME,
            text("Schedule", "When it runs", Text("spec.schedule", "")),
            text("Timezone", "Time zone of the schedule", Text("spec.timeZone", "<none>")),
            boolean("Suspend", "Whether it is suspended", Compute(cells::suspended)),
            integer("Active", "Jobs that are running", Count("status.active")),
            text("Last Schedule", "When it last ran", Compute(cells::last_schedule)),
            AGE,
            CONTAINERS,
            IMAGES,
            wide(
                "Selector",
                "Labels of the pods that belong to it",
                Compute(cells::job_template_selector),
            ),
        ],
    ),
    (
        "storage.k8s.io",
        "StorageClass",
        &[
            named("Name", NAME_TEXT, 0, Compute(cells::storage_class_name)),
            text("Provisioner", "Who makes the volumes", Text("provisioner", "")),
            text(
                "ReclaimPolicy",
                "What happens when a volume is released",
                Text("reclaimPolicy", "Delete"),
            ),
            text(
                "VolumeBindingMode",
                "When volumes are bound",
                Text("volumeBindingMode", "Immediate"),
            ),
            text(
                "AllowVolumeExpansion",
                "Whether volumes may grow",
                Flag("allowVolumeExpansion", false),
            ),
            AGE,
        ],
    ),
    (
        "storage.k8s.io",
        "VolumeAttributesClass",
        &[NAME, text("DriverName", "Driver it belongs to", Text("driverName", "")), AGE],
    ),
    (
        "storage.k8s.io",
        "VolumeAttachment",
        &[
            NAME,
            named("Attacher", "Driver that attaches the volume", 0, Text("spec.attacher", "")),
            text("PV", "Volume", Text("spec.source.persistentVolumeName", "")),
            text("Node", "Node", Text("spec.nodeName", "")),
            boolean("Attached", "Whether it is attached", Flag("status.attached", false)),
            AGE,
        ],
    ),
    (
        "storage.k8s.io",
        "CSINode",
        &[NAME, integer("Drivers", "How many drivers are registered", Count("spec.drivers")), AGE],
    ),
    (
        "storage.k8s.io",
        "CSIDriver",
        &[
            NAME,
            boolean(
                "AttachRequired",
                "Whether volumes are attached first",
                Flag("spec.attachRequired", true),
            ),
            boolean(
                "PodInfoOnMount",
                "Whether it wants to know the pod",
                Flag("spec.podInfoOnMount", false),
            ),
            boolean(
                "StorageCapacity",
                "Whether it reports capacity",
                Flag("spec.storageCapacity", false),
            ),
            text(
                "TokenRequests",
                "Audiences of the tokens it wants",
                Compute(cells::token_requests),
            ),
            boolean(
                "RequiresRepublish",
                "Whether volumes are published again",
                Flag("spec.requiresRepublish", false),
            ),
            text("Modes", "Life cycles of its volumes", Compute(cells::lifecycle_modes)),
            AGE,
        ],
    ),
    (
        "networking.k8s.io",
        "Ingress",
        &[
            NAME,
            text("Class", "Class that serves it", Text("spec.ingressClassName", "<none>")),
            text("Hosts", "Hosts of its rules", Compute(cells::ingress_hosts)),
            text("Address", "Where it is reached", Compute(cells::load_balancer)),
            text("Ports", "Ports it opens", Compute(cells::ingress_ports)),
            AGE,
        ],
    ),
    (
        "networking.k8s.io",
        "IngressClass",
        &[
            named("Name", NAME_TEXT, 0, Compute(cells::ingress_class_name)),
            text("Controller", "Who serves the class", Text("spec.controller", "")),
            text("Parameters", "Where its parameters are", Compute(cells::ingress_parameters)),
            AGE,
        ],
    ),
    (
        "networking.k8s.io",
        "NetworkPolicy",
        &[NAME, text("Pod-Selector", "Pods it is about", Compute(cells::policy_pod_selector)), AGE],
    ),
    (
        "networking.k8s.io",
        "ServiceCIDR",
        &[NAME, text("CIDRs", "Ranges of addresses", Compute(cells::cidrs)), AGE],
    ),
    (
        "networking.k8s.io",
        "IPAddress",
        &[NAME, text("ParentRef", "Who has the address", Compute(cells::address_parent))],
    ),
    (
        "discovery.k8s.io",
        "EndpointSlice",
        &[
            NAME,
            text("AddressType", "What kind of addresses", Text("addressType", "")),
            text("Ports", "Ports", Compute(cells::slice_ports)),
            text("Endpoints", "Addresses", Compute(cells::slice_endpoints)),
            AGE,
        ],
    ),
    ("rbac.authorization.k8s.io", "RoleBinding", BINDING),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding", BINDING),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration", WEBHOOKS),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration", WEBHOOKS),
    (
        "admissionregistration.k8s.io",
        "ValidatingAdmissionPolicy",
        &[
            NAME,
            integer("Validations", "How many rules it has", Count("spec.validations")),
            text("ParamKind", "Kind of its parameters", Compute(cells::parameter_kind)),
            AGE,
        ],
    ),
    (
        "admissionregistration.k8s.io",
        "MutatingAdmissionPolicy",
        &[
            NAME,
            integer("Mutations", "How many rules it has", Count("spec.mutations")),
            text("ParamKind", "Kind of its parameters", Compute(cells::parameter_kind)),
            AGE,
        ],
    ),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding", POLICY_BINDING),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding", POLICY_BINDING),
    (
        "certificates.k8s.io",
        "CertificateSigningRequest",
        &[
            NAME,
            AGE,
            text("SignerName", "Who should sign", Text("spec.signerName", "<none>")),
            text("Requestor", "Who asks", Text("spec.username", "")),
            text("RequestedDuration", "For how long", Compute(cells::requested_duration)),
            text("Condition", "Where the request stands", Compute(cells::request_condition)),
        ],
    ),
    (
        "certificates.k8s.io",
        "ClusterTrustBundle",
        &[NAME, text("SignerName", "Whose certificates", Text("spec.signerName", "<none>"))],
    ),
    (
        "policy",
        "PodDisruptionBudget",
        &[
            NAME,
            text("Min Available", "Pods that must stay", Text("spec.minAvailable", "N/A")),
            text("Max Unavailable", "Pods that may go", Text("spec.maxUnavailable", "N/A")),
            integer(
                "Allowed Disruptions",
                "Pods that may go now",
                Number("status.disruptionsAllowed"),
            ),
            AGE,
        ],
    ),
    (
        "autoscaling",
        "HorizontalPodAutoscaler",
        &[
            NAME,
            text("Reference", "What it scales", Compute(cells::scale_target)),
            text("Targets", "Metrics, now and wanted", Compute(cells::scale_metrics)),
            text("MinPods", "Fewest pods", Text("spec.minReplicas", "<unset>")),
            text("MaxPods", "Most pods", Number("spec.maxReplicas")),
            text("Replicas", "Pods there are", Number("status.currentReplicas")),
            AGE,
        ],
    ),
    (
        "autoscaling",
        "Scale",
        &[
            text("Name", NAME_TEXT, Text("metadata.name", "")),
            integer("Desired", "Wanted pods", Number("spec.replicas")),
            integer("Available", "Pods there are", Number("status.replicas")),
            AGE,
        ],
    ),
    (
        "coordination.k8s.io",
        "Lease",
        &[NAME, text("Holder", "Who holds it", Text("spec.holderIdentity", "")), AGE],
    ),
    (
        "coordination.k8s.io",
        "LeaseCandidate",
        &[
            NAME,
            text("LeaseName", "Lease it is a candidate for", Text("spec.leaseName", "")),
            text("BinaryVersion", "Version of the binary", Text("spec.binaryVersion", "")),
            text("EmulationVersion", "Version it emulates", Text("spec.emulationVersion", "")),
            AGE,
        ],
    ),
    (
        "scheduling.k8s.io",
        "PriorityClass",
        &[
            NAME,
            integer("Value", "The priority", Number("value")),
            boolean("Global-Default", "Whether it is the default", Flag("globalDefault", false)),
            AGE,
            text("PreemptionPolicy", "Whether it preempts others", Text("preemptionPolicy", "")),
        ],
    ),
    (
        "node.k8s.io",
        "RuntimeClass",
        &[NAME, text("Handler", "Runtime that runs it", Text("handler", "")), AGE],
    ),
    (
        "flowcontrol.apiserver.k8s.io",
        "FlowSchema",
        &[
            NAME,
            text(
                "PriorityLevel",
                "Priority level it leads to",
                Text("spec.priorityLevelConfiguration.name", ""),
            ),
            text(
                "MatchingPrecedence",
                "Lower ones are tried first",
                Number("spec.matchingPrecedence"),
            ),
            text(
                "DistinguisherMethod",
                "How flows are told apart",
                Text("spec.distinguisherMethod.type", "<none>"),
            ),
            AGE,
            text("MissingPL", "Whether the priority level is missing", Compute(cells::dangling)),
        ],
    ),
    (
        "flowcontrol.apiserver.k8s.io",
        "PriorityLevelConfiguration",
        &[
            NAME,
            text("Type", "Whether it is limited", Text("spec.type", "")),
            text(
                "NominalConcurrencyShares",
                "Its share of the server",
                Compute(cells::concurrency_shares),
            ),
            text("Queues", "How many queues", Compute(cells::queues)),
            text("HandSize", "Queues of one flow", Compute(cells::hand_size)),
            text("QueueLengthLimit", "Requests in a queue", Compute(cells::queue_length)),
            AGE,
        ],
    ),
    (
        "apiregistration.k8s.io",
        "APIService",
        &[
            NAME,
            text("Service", "Who serves it", Compute(cells::api_service)),
            text("Available", "Whether it is available", Compute(cells::api_available)),
            AGE,
        ],
    ),
    ("resource.k8s.io", "DeviceClass", &[NAME, AGE]),
    ("resource.k8s.io", "ResourceClaimTemplate", &[NAME, AGE]),
    (
        "resource.k8s.io",
        "ResourceClaim",
        &[NAME, text("State", "Where the claim stands", Compute(cells::claim_state)), AGE],
    ),
    (
        "resource.k8s.io",
        "ResourceSlice",
        &[
            NAME,
            text("Node", "Node of the devices", Text("spec.nodeName", "")),
            text("Driver", "Driver of the devices", Text("spec.driver", "")),
            text("Pool", "Pool of the devices", Text("spec.pool.name", "")),
            AGE,
        ],
    ),
    ("events.k8s.io", "Event", EVENT),
];

/// Columns of all other kinds.
const PLAIN: &[Column] = &[NAME, CREATED];

/// The columns of a kind.
pub(super) fn of(group: &str, kind: &str) -> &'static [Column] {
    TABLE
        .iter()
        .find(|(of_group, of_kind, _)| *of_group == group && *of_kind == kind)
        .map_or(PLAIN, |(_, _, columns)| columns)
}
