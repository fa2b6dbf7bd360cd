//! Custom kinds with kubectl and with the derive macro of `kube`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::crd::CustomResourceExt;
use kube::runtime::wait::{await_condition, conditions};
use kube::{Client, Config, CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::process::Process;
use crate::transcript::Terminal;

const DEFINITION: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: widgets.shop.example.com
spec:
  group: shop.example.com
  scope: Namespaced
  names: {plural: widgets, kind: Widget, shortNames: [wd], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}
    additionalPrinterColumns:
    - {name: Size, type: integer, jsonPath: .spec.size}
    - {name: Colour, type: string, jsonPath: .spec.colour, priority: 1}
    - {name: Age, type: date, jsonPath: .metadata.creationTimestamp}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            description: What the widget should be.
            required: [size]
            properties:
              size: {type: integer, minimum: 0, maximum: 100, description: How large it is.}
              colour: {type: string, default: blue, enum: [blue, red]}
              replicas: {type: integer, default: 1}
          status:
            type: object
            properties:
              replicas: {type: integer}
              conditions:
                type: array
                items:
                  type: object
                  properties: {type: {type: string}, status: {type: string}}
"#;

#[test]
fn kubectl_works_with_custom_kinds() {
    let Some(terminal) = Terminal::open() else { return };
    terminal.write("crd.yaml", DEFINITION);
    let widget = |size: &str| {
        format!(
            "apiVersion: shop.example.com/v1\nkind: Widget\nmetadata: {{name: w}}\nspec: {{size: {size}}}\n"
        )
    };
    terminal.write("w.yaml", &widget("3"));
    terminal.write("w5.yaml", &widget("5"));
    terminal.write("wrong.yaml", &widget("500"));
    terminal.check(
        r#"
$ kubectl apply -f crd.yaml
customresourcedefinition.apiextensions.k8s.io/widgets.shop.example.com created
$ kubectl wait --for=condition=established --timeout=30s crd/widgets.shop.example.com
customresourcedefinition.apiextensions.k8s.io/widgets.shop.example.com condition met
$ kubectl apply -f w.yaml
widget.shop.example.com/w created
$ kubectl apply -f w.yaml
widget.shop.example.com/w unchanged
$ kubectl apply -f w5.yaml
widget.shop.example.com/w configured
$ kubectl apply -f wrong.yaml
The Widget "w" is invalid: spec.size: Invalid value: 500: spec.size in body should be less than or equal to 100
(exit 1)
$ kubectl get wd
NAME  SIZE  AGE
w  5  <AGE>
$ kubectl get widgets.shop.example.com -o wide
NAME  SIZE  COLOUR  AGE
w  5  blue  <AGE>
$ kubectl get all -o name | grep widget
widget.shop.example.com/w
$ kubectl scale widget/w --replicas=4
widget.shop.example.com/w scaled
$ kubectl get wd w -o jsonpath='{.spec.replicas} {.metadata.generation}'
4 3
$ kubectl patch wd w --subresource=status --type=merge -p '{"status":{"conditions":[{"type":"Ready","status":"True"}]}}'
widget.shop.example.com/w patched
$ kubectl wait --for=condition=Ready --timeout=30s wd/w
widget.shop.example.com/w condition met
$ kubectl label wd w tier=front
widget.shop.example.com/w labeled
$ kubectl get wd -l tier=front -o name
widget.shop.example.com/w
$ kubectl explain widget.spec.size
GROUP:  shop.example.com
KIND:  Widget
VERSION:  v1

FIELD: size <integer>


DESCRIPTION:
    How large it is.
$ kubectl apply --server-side --field-manager=me -f w5.yaml --force-conflicts
widget.shop.example.com/w serverside-applied
$ kubectl delete -f crd.yaml
customresourcedefinition.apiextensions.k8s.io "widgets.shop.example.com" deleted
$ kubectl get widgets.shop.example.com
error: the server doesn't have a resource type "widgets"
(exit 1)
"#,
    );
}

/// A kind of an operator.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[kube(
    group = "shop.example.com",
    version = "v1",
    kind = "Order",
    namespaced,
    status = "OrderStatus",
    shortname = "ord",
    printcolumn = r#"{"name":"Items","type":"integer","jsonPath":".spec.count"}"#,
    scale(spec_replicas_path = ".spec.count", status_replicas_path = ".status.shipped"),
    selectable = ".spec.customer"
)]
#[serde(rename_all = "camelCase")]
struct OrderSpec {
    /// The department that pays.
    customer: String,
    #[schemars(range(min = 1, max = 100))]
    count: i32,
    #[serde(default = "standard")]
    speed: Speed,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    #[serde(default)]
    labels: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    lines: Vec<Line>,
}

#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
struct Line {
    article: String,
    price: f64,
}

#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
enum Speed {
    Standard,
    Express,
}

fn standard() -> Speed {
    Speed::Standard
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
struct OrderStatus {
    shipped: i32,
}

async fn client(process: &Process, directory: &std::path::Path) -> Client {
    let _ = process;
    let config = Kubeconfig::read_from(directory.join("kubeconfig")).unwrap();
    let config =
        Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

#[test]
fn a_definition_derived_with_kube_works() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let process = Process::serve(&["--memory", "--kubeconfig-out", kubeconfig.to_str().unwrap()]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = client(&process, directory.path()).await;
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        let name = Order::crd_name();
        definitions.create(&PostParams::default(), &Order::crd()).await.unwrap();
        let established = conditions::is_crd_established();
        await_condition(definitions.clone(), name, established).await.unwrap();
        let stored = definitions.get(name).await.unwrap();
        let schema =
            |definition: &CustomResourceDefinition| json!(definition.spec.versions[0].schema);
        assert_eq!(schema(&stored), schema(&Order::crd()));

        let orders: Api<Order> = Api::namespaced(client.clone(), "default");
        let spec = OrderSpec {
            customer: "ann".into(),
            count: 2,
            speed: Speed::Express,
            note: None,
            labels: [("a".to_owned(), "b".to_owned())].into(),
            lines: vec![Line { article: "tea".into(), price: 2.5 }],
        };
        let made =
            orders.create(&PostParams::default(), &Order::new("one", spec.clone())).await.unwrap();
        assert_eq!(made.spec, spec);
        let wrong = Order::new("two", OrderSpec { count: 500, ..spec.clone() });
        let refused = orders.create(&PostParams::default(), &wrong).await.unwrap_err();
        assert!(
            refused.to_string().contains("spec.count in body should be less than or equal to 100"),
            "{refused}"
        );

        let status = json!({"status": {"shipped": 1}});
        let params = PatchParams::apply("it");
        orders.patch_status("one", &params, &Patch::Merge(&status)).await.unwrap();
        assert_eq!(orders.get_scale("one").await.unwrap().status.unwrap().replicas, 1);
        let applied = json!({
            "apiVersion": "shop.example.com/v1", "kind": "Order",
            "metadata": {"name": "one"}, "spec": {"customer": "bob", "count": 3},
        });
        let applied =
            orders.patch("one", &params.clone().force(), &Patch::Apply(&applied)).await.unwrap();
        assert_eq!((applied.spec.customer.as_str(), applied.status.unwrap().shipped), ("bob", 1));
        let by_customer = ListParams::default().fields("spec.customer=bob");
        assert_eq!(orders.list(&by_customer).await.unwrap().items.len(), 1);

        let version = orders.list(&ListParams::default()).await.unwrap().metadata.resource_version;
        let watch = orders.watch(&WatchParams::default(), &version.unwrap()).await.unwrap();
        definitions.delete(name, &DeleteParams::default()).await.unwrap();
        let mut watch = std::pin::pin!(watch);
        let mut last = None;
        while let Some(event) = futures::StreamExt::next(&mut watch).await {
            last = Some(event.unwrap());
        }
        assert!(matches!(last, Some(WatchEvent::Deleted(order)) if order.name_any() == "one"));
        assert!(orders.list(&ListParams::default()).await.is_err());
    });
}
