//! Transcripts of kubectl commands that write.
//!
//! They show what an unmodified kubectl prints with a Kubernetes API server; the columns of tables
//! are those of Kubernetes 1.36.

use crate::transcript::Terminal;

/// S1.32, S11.20
#[test]
fn every_create_command_creates_its_object() {
    let Some(terminal) = Terminal::open() else { return };
    terminal.check(
        r#"
$ openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout tls.key -out tls.crt -subj /CN=x -days 1 2>/dev/null
$ kubectl create namespace team
namespace/team created
$ kubectl config set-context --current --namespace team >/dev/null
$ kubectl create namespace team
Error from server (AlreadyExists): namespaces "team" already exists
(exit 1)
$ kubectl create namespace Team
The Namespace "Team" is invalid: metadata.name: Invalid value: "Team": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')
(exit 1)
$ kubectl create configmap app --from-literal=colour=blue --from-literal=size=10
configmap/app created
$ kubectl create configmap app --from-literal=colour=red
error: failed to create configmap: configmaps "app" already exists
(exit 1)
$ kubectl create configmap nowhere --namespace nowhere
error: failed to create configmap: namespaces "nowhere" not found
(exit 1)
$ kubectl create secret generic password --from-literal=password=hunter2
secret/password created
$ kubectl get secret password -o jsonpath='{.type} {.data.password}'
Opaque aHVudGVyMg==
$ kubectl create secret tls pair --cert=tls.crt --key=tls.key
secret/pair created
$ kubectl create secret docker-registry registry --docker-server=r.example --docker-username=u --docker-password=p
secret/registry created
$ kubectl create serviceaccount robot
serviceaccount/robot created
$ kubectl create deployment web --image=nginx:1 --replicas=2 --port=80
deployment.apps/web created
$ kubectl create job once --image=busybox -- echo hello
job.batch/once created
$ kubectl create cronjob tick --image=busybox --schedule='*/5 * * * *' -- echo tick
cronjob.batch/tick created
$ kubectl create cronjob tock --image=busybox --schedule='sometimes'
error: failed to create cronjob: CronJob.batch "tock" is invalid: spec.schedule: Invalid value: "sometimes": expected exactly 5 fields, found 1: [sometimes]
(exit 1)
$ kubectl create job from-tick --from=cronjob/tick
job.batch/from-tick created
$ kubectl create service clusterip inside --tcp=80:8080
service/inside created
$ kubectl create service nodeport outside --tcp=80
service/outside created
$ kubectl create service externalname elsewhere --external-name=example.com
service/elsewhere created
$ kubectl create service loadbalancer balanced --tcp=80
service/balanced created
$ kubectl create role reader --verb=get,list --resource=pods,deployments.apps
role.rbac.authorization.k8s.io/reader created
$ kubectl create rolebinding readers --role=reader --serviceaccount=team:robot --user=alice
rolebinding.rbac.authorization.k8s.io/readers created
$ kubectl create clusterrole watcher --verb=watch --resource=nodes
clusterrole.rbac.authorization.k8s.io/watcher created
$ kubectl create clusterrolebinding watchers --clusterrole=watcher --group=ops
clusterrolebinding.rbac.authorization.k8s.io/watchers created
$ kubectl create quota small --hard=pods=3
resourcequota/small created
$ kubectl create poddisruptionbudget one --selector=app=web --min-available=1
poddisruptionbudget.policy/one created
$ kubectl create priorityclass usual --value=10 --description='most pods'
priorityclass.scheduling.k8s.io/usual created
$ kubectl create ingress edge --class=fast --rule='a.example/x=inside:80'
ingress.networking.k8s.io/edge created
$ kubectl create token robot | cut -c 1-3
eyJ
$ kubectl create token robot --duration 1m
error: failed to create token: TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 60: may not specify a duration less than 10 minutes
(exit 1)
$ kubectl create token nobody
error: failed to create token: serviceaccounts "nobody" not found
(exit 1)
$ kubectl run probe --image=busybox --restart=Never --labels=app=probe
pod/probe created
$ kubectl get all
NAME  READY  STATUS  RESTARTS  AGE
pod/probe  0/1  Pending  0  <AGE>

NAME  TYPE  CLUSTER-IP  EXTERNAL-IP  PORT(S)  AGE
service/balanced  LoadBalancer  <IP>  <pending>  80:<PORT>/TCP  <AGE>
service/elsewhere  ExternalName  <none>  example.com  <none>  <AGE>
service/inside  ClusterIP  <IP>  <none>  80/TCP  <AGE>
service/outside  NodePort  <IP>  <none>  80:<PORT>/TCP  <AGE>

NAME  READY  UP-TO-DATE  AVAILABLE  AGE
deployment.apps/web  0/2  0  0  <AGE>

NAME  SCHEDULE  TIMEZONE  SUSPEND  ACTIVE  LAST SCHEDULE  AGE
cronjob.batch/tick  */5 * * * *  <none>  False  0  <none>  <AGE>

NAME  STATUS  COMPLETIONS  DURATION  AGE
job.batch/from-tick  Running  0/1  <AGE>
job.batch/once  Running  0/1  <AGE>
$ kubectl get pods,deployments,services,rolebindings -o wide
NAME  READY  STATUS  RESTARTS  AGE  IP  NODE  NOMINATED NODE  READINESS GATES
pod/probe  0/1  Pending  0  <AGE>  <none>  <none>  <none>  <none>

NAME  READY  UP-TO-DATE  AVAILABLE  AGE  CONTAINERS  IMAGES  SELECTOR
deployment.apps/web  0/2  0  0  <AGE>  nginx  nginx:1  app=web

NAME  TYPE  CLUSTER-IP  EXTERNAL-IP  PORT(S)  AGE  SELECTOR
service/balanced  LoadBalancer  <IP>  <pending>  80:<PORT>/TCP  <AGE>  app=balanced
service/elsewhere  ExternalName  <none>  example.com  <none>  <AGE>  app=elsewhere
service/inside  ClusterIP  <IP>  <none>  80/TCP  <AGE>  app=inside
service/outside  NodePort  <IP>  <none>  80:<PORT>/TCP  <AGE>  app=outside

NAME  ROLE  AGE  USERS  GROUPS  SERVICEACCOUNTS
rolebinding.rbac.authorization.k8s.io/readers  Role/reader  <AGE>  alice  team/robot
$ kubectl get jobs -o wide | sed 's/uid=.*/uid=<UID>/'
NAME  STATUS  COMPLETIONS  DURATION  AGE  CONTAINERS  IMAGES  SELECTOR
from-tick  Running  0/1  <AGE>  tick  busybox  batch.kubernetes.io/controller-uid=<UID>
once  Running  0/1  <AGE>  once  busybox  batch.kubernetes.io/controller-uid=<UID>
$ kubectl get configmaps,secrets,serviceaccounts,roles,resourcequotas,poddisruptionbudgets,ingresses
NAME  DATA  AGE
configmap/app  2  <AGE>

NAME  TYPE  DATA  AGE
secret/pair  kubernetes.io/tls  2  <AGE>
secret/password  Opaque  1  <AGE>
secret/registry  kubernetes.io/dockerconfigjson  1  <AGE>

NAME  AGE
serviceaccount/robot  <AGE>

NAME  CREATED AT
role.rbac.authorization.k8s.io/reader  <TIME>

NAME  REQUEST  LIMIT  AGE
resourcequota/small  pods: 1/3  <AGE>

NAME  MIN AVAILABLE  MAX UNAVAILABLE  ALLOWED DISRUPTIONS  AGE
poddisruptionbudget.policy/one  1  N/A  0  <AGE>

NAME  CLASS  HOSTS  ADDRESS  PORTS  AGE
ingress.networking.k8s.io/edge  fast  a.example  80  <AGE>
$ kubectl get priorityclasses
NAME  VALUE  GLOBAL-DEFAULT  AGE  PREEMPTIONPOLICY
system-cluster-critical  2000000000  false  <AGE>  PreemptLowerPriority
system-node-critical  2000001000  false  <AGE>  PreemptLowerPriority
usual  10  false  <AGE>  PreemptLowerPriority
$ kubectl get job once -o jsonpath='{.spec.template.metadata.labels.job-name}'
once
$ kubectl get job from-tick -o jsonpath='{.metadata.ownerReferences[0].kind} {.metadata.annotations}'
CronJob {"cronjob.kubernetes.io/instantiate":"manual"}
"#,
    );
}

#[test]
fn apply_merges_prunes_and_names_conflicting_managers() {
    let Some(terminal) = Terminal::open() else { return };
    terminal.write("web.yaml", WEB);
    terminal.write("more.yaml", MORE);
    terminal.write("typo.yaml", TYPO);
    terminal.write("wrong.yaml", WRONG);
    terminal.write("other.yaml", OTHER);
    terminal.check(
        r#"
$ kubectl apply -f web.yaml
deployment.apps/web created
service/web created
$ kubectl apply -f web.yaml
deployment.apps/web unchanged
service/web unchanged
$ kubectl diff -f web.yaml
$ kubectl diff -f more.yaml | grep '^[-+] '
-  generation: 1
+  generation: 2
-  replicas: 1
+  replicas: 3
-  - name: A
-  value: a
-  value: b
-  image: nginx:1
+  value: bb
+  - name: C
+  value: c
+  image: nginx:2
-  ports:
-  - containerPort: 80
-  protocol: TCP
$ kubectl apply -f more.yaml --dry-run=server
deployment.apps/web configured (server dry run)
$ kubectl apply -f more.yaml
deployment.apps/web configured
$ kubectl get deployment web -o jsonpath='{.spec.replicas} {.spec.template.spec.containers[0].image} {.spec.template.spec.containers[0].ports} {.spec.template.spec.containers[0].env}'
3 nginx:2  [{"name":"B","value":"bb"},{"name":"C","value":"c"}]
$ kubectl apply -f typo.yaml
Error from server (BadRequest): error when creating "typo.yaml": ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: unknown field "dada"
(exit 1)
$ kubectl apply -f typo.yaml --validate=warn
Warning: unknown field "dada"
configmap/typo created
$ kubectl apply -f typo.yaml --validate=ignore
configmap/typo configured
$ kubectl apply -f wrong.yaml
Error from server (BadRequest): error when creating "wrong.yaml": Deployment in version "v1" cannot be handled as a Deployment: json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32
(exit 1)
$ kubectl apply -f other.yaml
The Deployment "web" is invalid: spec.selector: Invalid value: {"matchLabels":{"app":"other"}}: field is immutable
(exit 1)
$ kubectl apply view-last-applied deployment web | head -3
apiVersion: apps/v1
kind: Deployment
metadata:
$ kubectl get deployment web -o jsonpath='{range .metadata.managedFields[*]}{.manager} {.operation}{"\n"}{end}'
kubectl-client-side-apply Update
$ kubectl apply --server-side -f web.yaml
deployment.apps/web serverside-applied
service/web serverside-applied
$ kubectl get deployment web -o jsonpath='{range .metadata.managedFields[*]}{.manager} {.operation}{"\n"}{end}' | sort
kubectl Apply
kubectl-last-applied Apply
$ kubectl apply --server-side -f web.yaml
deployment.apps/web serverside-applied
service/web serverside-applied
$ kubectl scale deployment web --replicas=5
deployment.apps/web scaled
$ kubectl apply --server-side -f web.yaml 2>&1 | grep -v '^[ *]\|^Please\|^are\|^See'
service/web serverside-applied
error: Apply failed with 1 conflict: conflict with "kubectl" with subresource "scale" using apps/v1: .spec.replicas
$ kubectl apply --server-side --field-manager=other -f more.yaml 2>&1 | sed '/^Please/,$d'
error: Apply failed with 3 conflicts: conflicts with "kubectl":
- .spec.template.spec.containers[name="c"].image
- .spec.template.spec.containers[name="c"].env[name="B"].value
conflicts with "kubectl" with subresource "scale" using apps/v1:
- .spec.replicas
$ kubectl apply --server-side --field-manager=other --force-conflicts -f more.yaml
deployment.apps/web serverside-applied
$ kubectl get deployment web -o jsonpath='{.spec.replicas} {.spec.template.spec.containers[0].env}'
3 [{"name":"A","value":"a"},{"name":"B","value":"bb"},{"name":"C","value":"c"}]
$ kubectl apply --server-side --dry-run=server -f more.yaml --field-manager=third
deployment.apps/web serverside-applied (server dry run)
$ kubectl delete -f web.yaml
deployment.apps "web" deleted
service "web" deleted
"#,
    );
}

#[test]
fn edit_patch_and_replace_update_the_object() {
    let Some(terminal) = Terminal::open() else { return };
    terminal.script("seven", SEVEN);
    terminal.script("negative", NEGATIVE);
    terminal.check(
        r#"
$ kubectl create deployment web --image=nginx:1 --replicas=2
deployment.apps/web created
$ KUBE_EDITOR=./seven kubectl edit deployment web
deployment.apps/web edited
$ kubectl get deployment web -o jsonpath='{.spec.replicas}'
7
$ KUBE_EDITOR=true kubectl edit deployment web
Edit cancelled, no changes made.
$ KUBE_EDITOR=./negative kubectl edit deployment web 2>&1 | sed 's/kubectl-edit-[0-9]*/kubectl-edit-N/'
error: deployments.apps "web" is invalid
# * spec.replicas: Invalid value: -1: must be greater than or equal to 0
A copy of your changes has been stored to "<DIR>/kubectl-edit-N.yaml"
error: Edit cancelled, no valid changes were saved.
$ kubectl patch deployment web --patch '{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"sidecar:1"}]}}}}'
deployment.apps/web patched
$ kubectl get deployment web -o jsonpath='{.spec.template.spec.containers[*].name}'
side nginx
$ kubectl patch deployment web --type merge --patch '{"metadata":{"labels":{"tier":"front"}},"spec":{"replicas":null}}'
deployment.apps/web patched
$ kubectl patch deployment web --type json --patch '[{"op":"test","path":"/spec/replicas","value":1},{"op":"remove","path":"/spec/template/spec/containers/0"}]'
deployment.apps/web patched
$ kubectl patch deployment web --type json --patch '[{"op":"test","path":"/spec/replicas","value":9}]'
The request is invalid: the server rejected our request due to an error in our request
(exit 1)
$ kubectl patch deployment web --type merge --patch '{"spec":{"replicas":1}}'
deployment.apps/web patched (no change)
$ kubectl patch deployment web --patch '{"spec":{"template":{"spec":{"containers":[{"name":"nginx","$patch":"delete"},{"name":"only","image":"only:1"}]}}}}' -o jsonpath='{.spec.template.spec.containers[*].name}'
only
$ kubectl patch deployment web --subresource status --type merge --patch '{"status":{"replicas":4},"spec":{"replicas":9}}' -o jsonpath='{.status.replicas} {.spec.replicas}'
4 1
$ kubectl patch deployment missing --patch '{}'
Error from server (NotFound): deployments.apps "missing" not found
(exit 1)
$ kubectl get deployment web -o yaml | sed 's/replicas: 1/replicas: 2/' > changed.yaml
$ kubectl replace -f changed.yaml
deployment.apps/web replaced
$ kubectl replace -f changed.yaml
Error from server (Conflict): error when replacing "changed.yaml": Operation cannot be fulfilled on deployments.apps "web": the object has been modified; please apply your changes to the latest version and try again
(exit 1)
$ sed 's/^  name: web/  name: gone/; /uid:/d; /resourceVersion:/d' changed.yaml | kubectl replace -f -
Error from server (NotFound): error when replacing "STDIN": deployments.apps "gone" not found
(exit 1)
$ kubectl get deployment web -o json | kubectl replace --force -f -
deployment.apps "web" deleted
deployment.apps/web replaced
"#,
    );
}

#[test]
fn scale_set_and_rollout_change_the_template() {
    let Some(terminal) = Terminal::open() else { return };
    terminal.script("revision", REVISION);
    terminal.check(
        r#"
$ kubectl create deployment web --image=nginx:1 --replicas=2
deployment.apps/web created
$ kubectl scale deployment web --replicas=4
deployment.apps/web scaled
$ kubectl scale deployment web --current-replicas=9 --replicas=1
error: Expected replicas to be 9, was 4
(exit 1)
$ kubectl scale deployment/web deployment/missing --replicas=3
deployment.apps/web scaled
Error from server (NotFound): deployments.apps "missing" not found
(exit 1)
$ kubectl get deployment web -o jsonpath='{.spec.replicas} {.metadata.generation}'
3 3
$ kubectl set image deployment/web nginx=nginx:3
deployment.apps/web image updated
$ kubectl set image deployment/web none=nginx:3
error: unable to find container named "none"
(exit 1)
$ kubectl set env deployment/web COLOUR=blue SIZE=10
deployment.apps/web env updated
$ kubectl set env deployment/web --list
# Deployment web, container nginx
COLOUR=blue
SIZE=10
$ kubectl set env deployment/web SIZE-
deployment.apps/web env updated
$ kubectl set resources deployment/web --limits=cpu=200m,memory=64Mi --requests=cpu=100m
deployment.apps/web resource requirements updated
$ kubectl set resources deployment/web --requests=cpu=300m
error: failed to patch resources update to pod template Deployment.apps "web" is invalid: spec.template.spec.containers[0].resources.requests: Invalid value: "300m": must be less than or equal to cpu limit of 200m
(exit 1)
$ kubectl set serviceaccount deployment/web robot
deployment.apps/web serviceaccount updated
$ kubectl get deployment web -o jsonpath='{.spec.template.spec.containers[0]} {.spec.template.spec.serviceAccountName}'
{"env":[{"name":"COLOUR","value":"blue"}],"image":"nginx:3","imagePullPolicy":"IfNotPresent","name":"nginx","resources":{"limits":{"cpu":"200m","memory":"64Mi"},"requests":{"cpu":"100m"}},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File"} robot
$ kubectl rollout history deployment/web
deployment.apps/web
No rollout history found.
$ ./revision 1 first
replicaset.apps/web-1 created
$ ./revision 2 second
replicaset.apps/web-2 created
$ kubectl rollout history deployment/web
deployment.apps/web
REVISION  CHANGE-CAUSE
1  first
2  second

$ kubectl rollout history deployment/web --revision=2
deployment.apps/web with revision #2
Pod Template:
  Labels:  app=web
  revision=2
  Annotations:  kubernetes.io/change-cause: second
  Containers:
   nginx:
    Image:  nginx:2
    Port:  <none>
    Host Port:  <none>
    Environment:  <none>
    Mounts:  <none>
  Volumes:  <none>
  Node-Selectors:  <none>
  Tolerations:  <none>

$ kubectl annotate deployment web deployment.kubernetes.io/revision=2
deployment.apps/web annotated
$ kubectl rollout undo deployment/web --to-revision=1
deployment.apps/web rolled back
$ kubectl get deployment web -o jsonpath='{.spec.template.spec.containers[0].image}'
nginx:1
$ kubectl rollout pause deployment/web
deployment.apps/web paused
$ kubectl rollout pause deployment/web
error: deployments.apps "web" is already paused
(exit 1)
$ kubectl rollout resume deployment/web
deployment.apps/web resumed
$ kubectl rollout restart deployment/web
deployment.apps/web restarted
"#,
    );
}

#[test]
fn label_taint_wait_and_delete_print_what_kubernetes_prints() {
    let Some(terminal) = Terminal::open() else { return };
    terminal.write("node.yaml", NODE);
    terminal.write("pods.yaml", PODS);
    terminal.check(
        r#"
$ kubectl create deployment web --image=nginx:1 --port=80
deployment.apps/web created
$ kubectl label deployment web tier=front
deployment.apps/web labeled
$ kubectl label deployment web tier=back
error: 'tier' already has a value (front), and --overwrite is false
(exit 1)
$ kubectl label deployment web tier=back --overwrite
deployment.apps/web labeled
$ kubectl label deployment web tier=back
deployment.apps/web not labeled
$ kubectl label deployment web 'tier=not valid' --overwrite
error: invalid label value: "tier=not valid": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')
(exit 1)
$ kubectl label deployment web tier-
deployment.apps/web unlabeled
$ kubectl get deployments --show-labels
NAME  READY  UP-TO-DATE  AVAILABLE  AGE  LABELS
web  0/1  0  0  <AGE>  app=web
$ kubectl get deployments -l app=web,tier!=x -L app
NAME  READY  UP-TO-DATE  AVAILABLE  AGE  APP
web  0/1  0  0  <AGE>  web
$ kubectl annotate deployment web note='hello there'
deployment.apps/web annotated
$ kubectl annotate deployment web note=
error: --overwrite is false but found the following declared annotation(s): 'note' already has a value (hello there)
(exit 1)
$ kubectl annotate deployment web note-
deployment.apps/web annotated
$ kubectl expose deployment web --port=80 --target-port=8080
service/web exposed
$ kubectl expose deployment web --port=80
Error from server (AlreadyExists): services "web" already exists
(exit 1)
$ kubectl autoscale deployment web --min=2 --max=5 --cpu-percent=80
horizontalpodautoscaler.autoscaling/web autoscaled
$ kubectl get horizontalpodautoscalers,services
NAME  REFERENCE  TARGETS  MINPODS  MAXPODS  REPLICAS  AGE
horizontalpodautoscaler.autoscaling/web  Deployment/web  cpu: <unknown>/80%  2  5  0  <AGE>

NAME  TYPE  CLUSTER-IP  EXTERNAL-IP  PORT(S)  AGE
service/kubernetes  ClusterIP  <IP>  <none>  443/TCP  <AGE>
service/web  ClusterIP  <IP>  <none>  80/TCP  <AGE>
$ kubectl create -f node.yaml
node/n1 created
$ kubectl taint node n1 dedicated=db:NoSchedule
node/n1 tainted
$ kubectl taint node n1 dedicated=db:NoSchedule
error: node n1 already has dedicated taint(s) with same effect(s) and --overwrite is false
(exit 1)
$ kubectl taint node n1 dedicated=x:NoSchedule --overwrite
node/n1 modified
$ kubectl taint node n1 dedicated:NoSchedule-
node/n1 untainted
$ kubectl cordon n1
node/n1 cordoned
$ kubectl cordon n1
node/n1 already cordoned
$ kubectl get nodes
NAME  STATUS  ROLES  AGE  VERSION
n1  Ready,SchedulingDisabled  worker  <AGE>  v1.36.4
$ kubectl uncordon n1
node/n1 uncordoned
$ kubectl create -f pods.yaml
pod/lone created
pod/held created
$ kubectl get pods
NAME  READY  STATUS  RESTARTS  AGE
held  0/1  Pending  0  <AGE>
lone  0/1  Pending  0  <AGE>
$ kubectl drain n1
node/n1 cordoned
error: unable to drain node "n1" due to error: cannot delete cannot delete Pods that declare no controller (use --force to override): default/lone, continuing command...
There are pending nodes to be drained:
 n1
cannot delete cannot delete Pods that declare no controller (use --force to override): default/lone
(exit 1)
$ kubectl drain n1 --force
node/n1 already cordoned
Warning: deleting Pods that declare no controller: default/lone
evicting pod default/lone
pod/lone evicted
node/n1 drained
$ kubectl auth can-i create pods
yes
$ kubectl auth can-i --list | head -3
Resources  Non-Resource URLs  Resource Names  Verbs
*.*  []  []  [*]
                                                [*]  []  [*]
$ kubectl auth whoami | head -3
ATTRIBUTE  VALUE
Username  kubernetes-admin
Groups  [system:masters system:authenticated]
$ kubectl auth can-i create pods --token=$(kubectl create serviceaccount robot >/dev/null; kubectl create token robot) --kubeconfig=/dev/null --server=$(kubectl config view -o jsonpath='{.clusters[0].cluster.server}') --insecure-skip-tls-verify
no
(exit 1)
$ kubectl wait deployment/web --for=jsonpath='{.spec.replicas}'=1 --timeout=10s
deployment.apps/web condition met
$ (kubectl patch deployment web --subresource=status --type=merge -p '{"status":{"conditions":[{"type":"Available","status":"True"}]}}' >/dev/null) & kubectl wait deployment/web --for=condition=Available --timeout=20s
deployment.apps/web condition met
$ kubectl wait deployment/web --for=condition=Ready --timeout=1s
error: timed out waiting for the condition on deployments/web
(exit 1)
$ kubectl wait pod/missing --for=condition=Ready --timeout=1s
Error from server (NotFound): pods "missing" not found
(exit 1)
$ kubectl delete pod held --wait=false
pod "held" deleted
$ kubectl get pod held
NAME  READY  STATUS  RESTARTS  AGE
held  0/1  Terminating  0  <AGE>
$ kubectl patch pod held --type=merge -p '{"metadata":{"finalizers":null}}' >/dev/null; kubectl wait pod/held --for=delete --timeout=20s && echo gone
gone
$ kubectl delete deployment web --cascade=foreground --wait=false
deployment.apps "web" deleted
$ kubectl get deployment web -o jsonpath='{.metadata.finalizers}'
["foregroundDeletion"]
$ kubectl delete service web missing --cascade=background
service "web" deleted
Error from server (NotFound): services "missing" not found
(exit 1)
$ kubectl create configmap a --from-literal=x=y
configmap/a created
$ kubectl create configmap b --from-literal=x=y
configmap/b created
$ kubectl delete configmaps --all
configmap "a" deleted
configmap "b" deleted
$ kubectl delete configmap -l a=b
No resources found
$ kubectl delete namespace default
Error from server (Forbidden): namespaces "default" is forbidden: this namespace may not be deleted
(exit 1)
$ kubectl create namespace temporary
namespace/temporary created
$ kubectl delete namespace temporary --wait=false
namespace "temporary" deleted
$ kubectl get namespace temporary
NAME  STATUS  AGE
temporary  Terminating  <AGE>
$ kubectl create configmap late --namespace temporary
error: failed to create configmap: configmaps "late" is forbidden: unable to create new content in namespace temporary because it is being terminated
(exit 1)
"#,
    );
}

/// S11.20
#[test]
fn explain_describes_every_field() {
    let Some(terminal) = Terminal::open() else { return };
    terminal.check(
        r#"
$ kubectl explain pods | grep '^KIND\|^VERSION\|<'
KIND:  Pod
VERSION:  v1
  apiVersion  <string>
  kind  <string>
  metadata  <ObjectMeta>
  spec  <PodSpec>
  status  <PodStatus>
$ kubectl explain deployment.spec.strategy | grep '<'
FIELD: strategy <DeploymentStrategy>
  rollingUpdate  <RollingUpdateDeployment>
  type  <string>
$ kubectl explain service.spec.ports.port | grep '<'
FIELD: port <integer>
$ kubectl explain pod.spec.nosuch
KIND:  Pod
VERSION:  v1

error: field "nosuch" does not exist
(exit 1)
$ kubectl explain nosuch
the server doesn't have a resource type "nosuch"
(exit 1)
$ kubectl explain deployments.spec.template.spec.containers.env --recursive | sed -n '/FIELDS/,$p'
FIELDS:
  name  <string> -required-
  value  <string>
  valueFrom  <EnvVarSource>
    configMapKeyRef  <ConfigMapKeySelector>
      key  <string> -required-
      name  <string>
      optional  <boolean>
    fieldRef  <ObjectFieldSelector>
      apiVersion  <string>
      fieldPath  <string> -required-
    fileKeyRef  <FileKeySelector>
      key  <string> -required-
      optional  <boolean>
      path  <string> -required-
      volumeName  <string> -required-
    resourceFieldRef  <ResourceFieldSelector>
      containerName  <string>
      divisor  <Quantity>
      resource  <string> -required-
    secretKeyRef  <SecretKeySelector>
      key  <string> -required-
      name  <string>
      optional  <boolean>

$ kubectl explain customresourcedefinition.spec.versions.schema.openAPIV3Schema --recursive | grep '<' | head -5
FIELD: openAPIV3Schema <JSONSchemaProps>
  $ref  <string>
  $schema  <string>
  additionalItems  <JSONSchemaPropsOrBool>
  additionalProperties  <JSONSchemaPropsOrBool>
$ kubectl explain horizontalpodautoscaler --api-version=autoscaling/v1 | grep '<'
  apiVersion  <string>
  kind  <string>
  metadata  <ObjectMeta>
  spec  <HorizontalPodAutoscalerSpec> -required-
  status  <HorizontalPodAutoscalerStatus>
$ kubectl api-resources --api-group=apps
NAME  SHORTNAMES  APIVERSION  NAMESPACED  KIND
controllerrevisions  apps/v1  true  ControllerRevision
daemonsets  ds  apps/v1  true  DaemonSet
deployments  deploy  apps/v1  true  Deployment
replicasets  rs  apps/v1  true  ReplicaSet
statefulsets  sts  apps/v1  true  StatefulSet
$ kubectl api-resources --namespaced=false --api-group=rbac.authorization.k8s.io -o wide
NAME  SHORTNAMES  APIVERSION  NAMESPACED  KIND  VERBS  CATEGORIES
clusterrolebindings  rbac.authorization.k8s.io/v1  false  ClusterRoleBinding  create,delete,deletecollection,get,list,patch,update,watch
clusterroles  rbac.authorization.k8s.io/v1  false  ClusterRole  create,delete,deletecollection,get,list,patch,update,watch
"#,
    );
}

const WEB: &str = r#"apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: c, image: "nginx:1", ports: [{containerPort: 80}], env: [{name: A, value: a}, {name: B, value: b}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
"#;

const MORE: &str = r#"apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: c, image: "nginx:2", env: [{name: B, value: bb}, {name: C, value: c}]}
"#;

const TYPO: &str = r#"apiVersion: v1
kind: ConfigMap
metadata: {name: typo}
dada: {a: b}
"#;

const WRONG: &str = r#"apiVersion: apps/v1
kind: Deployment
metadata: {name: wrong}
spec:
  replicas: many
"#;

const OTHER: &str = r#"apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: other}}
  template:
    metadata: {labels: {app: other}}
    spec: {containers: [{name: c, image: i}]}
"#;

const SEVEN: &str = r#"sed -i 's/replicas: [0-9]*/replicas: 7/' "$1""#;

const NEGATIVE: &str = r#"grep '^# \*' "$1" && exit 0
sed -i 's/replicas: [0-9]*/replicas: -1/' "$1""#;

const REVISION: &str = r#"# The replica set that a controller would have made for a revision of the deployment.
uid=$(kubectl get deployment web -o jsonpath={.metadata.uid})
kubectl create -f - <<END
apiVersion: apps/v1
kind: ReplicaSet
metadata:
  name: web-$1
  labels: {app: web}
  annotations: {deployment.kubernetes.io/revision: "$1", kubernetes.io/change-cause: "$2"}
  ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web, uid: $uid, controller: true}]
spec:
  selector: {matchLabels: {app: web, revision: "$1"}}
  template:
    metadata: {labels: {app: web, revision: "$1"}}
    spec: {containers: [{name: nginx, image: "nginx:$1"}]}
END"#;

const NODE: &str = r#"apiVersion: v1
kind: Node
metadata: {name: n1, labels: {node-role.kubernetes.io/worker: ""}}
status: {nodeInfo: {kubeletVersion: v1.36.4}, conditions: [{type: Ready, status: "True"}]}
"#;

const PODS: &str = r#"apiVersion: v1
kind: Pod
metadata: {name: lone}
spec: {nodeName: n1, terminationGracePeriodSeconds: 0, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: held, finalizers: [example.com/hold]}
spec: {containers: [{name: c, image: i}]}
"#;

#[test]
fn an_administrator_can_impersonate_users() {
    let Some(terminal) = Terminal::open() else { return };
    terminal.check(
        r#"
$ kubectl auth whoami --as jane --as-group dev --as-uid 7
ATTRIBUTE  VALUE
Username  jane
UID  7
Groups  [dev system:authenticated]
$ kubectl auth whoami --as system:serviceaccount:default:robot
ATTRIBUTE  VALUE
Username  system:serviceaccount:default:robot
Groups  [system:serviceaccounts system:serviceaccounts:default system:authenticated]
$ kubectl get pods --as jane
Error from server (Forbidden): pods is forbidden: User "jane" cannot list resource "pods" in API group "" in the namespace "default"
(exit 1)
$ kubectl get pods --as root --as-group system:masters
No resources found in default namespace.
$ kubectl auth can-i list pods --as jane
no
(exit 1)
"#,
    );
}
