//! Identity and permission (B060–B075).

use serde_json::json;

use super::suite::{ADMIN, CMS, SECRET, Suite, USER, config_map};

const SELF: &str = "POST /apis/authentication.k8s.io/v1/selfsubjectreviews";

pub(crate) fn rows(suite: &mut Suite) {
    credentials(suite);
    impersonation(suite);
    permission(suite);
}

fn credentials(suite: &mut Suite) {
    suite.row(60, |row| {
        for target in [CMS, "/api/v1/nodes", "/metrics", "/api"] {
            let answer = row.suite.ask_over_tls(&format!("GET {target}"), "");
            row.check(answer.code == 403, || format!("{target}: {}", answer.code));
        }
        let post = format!("POST {CMS}");
        let answer = row.suite.ask_over_tls(&post, config_map("v").to_string());
        row.is_status(&answer, &post, 403, "Forbidden");
        for target in ["/readyz", "/livez", "/version"] {
            let answer = row.suite.ask_over_tls(&format!("GET {target}"), "");
            row.check(answer.code == 200, || format!("{target}: {}", answer.code));
        }
    });
    let wrong = |row: &mut super::suite::Row<'_>, value: &str| {
        let request = format!("GET {CMS}\nAuthorization: {value}");
        let answer = row.suite.ask_over_tls(&request, "");
        row.is_status(&answer, value, 401, "Unauthorized");
        row.refused(&request, "", 401, "Unauthorized");
    };
    suite.row(61, |row| {
        for value in [
            &format!("Bearer {SECRET}"),
            "Basic YWRtaW46YWRtaW4=",
            "Bearer",
            &format!("Bearer  {ADMIN}"),
            &format!("Bearer {ADMIN}x"),
            ADMIN,
        ] {
            wrong(row, value);
        }
    });
    suite.row(62, |row| wrong(row, &format!("Bearer {ADMIN} extra")));
    suite.row(63, |row| {
        let token = "x".repeat(1 << 20);
        let answer =
            row.suite.ask_over_tls(&format!("GET {CMS}\nAuthorization: Bearer {token}"), "");
        row.check(answer.code == 431, || format!("{} {}", answer.code, answer.text()));
    });
    suite.row(64, |row| {
        let request = format!(
            "{SELF}\nAuthorization: Bearer {USER}\nX-Remote-User: admin\n\
             X-Remote-Group: system:masters\nX-Remote-Extra-A: b"
        );
        let answer = row.suite.ask_over_tls(&request, "{}");
        let info = answer.json()["status"]["userInfo"].clone();
        row.check(info["username"] == "user" && info["extra"].is_null(), || answer.text());
        row.check(!info["groups"].to_string().contains("masters"), || answer.text());
    });
    suite.row(74, |row| {
        let answer = row.suite.ask_over_tls(&format!("GET {CMS}?access_token={ADMIN}"), "");
        row.check(matches!(answer.code, 401 | 403), || answer.text());
    });
}

fn impersonation(suite: &mut Suite) {
    suite.row(65, |row| {
        for header in ["Impersonate-User: admin", "Impersonate-User: user"] {
            let request = format!("{SELF}\nAuthorization: Bearer {USER}\n{header}");
            row.refused(&request, "{}", 403, "Forbidden");
        }
    });
    suite.row(66, |row| {
        for header in
            ["Impersonate-Group: system:masters", "Impersonate-Uid: 1", "Impersonate-Extra-A: b"]
        {
            row.bad_request(&format!("{SELF}\n{header}"), "{}");
        }
    });
    suite.row(67, |row| {
        row.bad_request(&format!("{SELF}\nImpersonate-User: "), "{}");
        row.bad_request(&format!("GET {CMS}\nImpersonate-User:\nImpersonate-Group: g"), "");
    });
}

fn permission(suite: &mut Suite) {
    suite.row(68, |row| {
        let merge = "Content-Type: application/merge-patch+json";
        for request in [
            format!("GET {CMS}/a"),
            format!("GET {CMS}"),
            format!("GET {CMS}?watch=1"),
            format!("DELETE {CMS}"),
            format!("DELETE {CMS}/a"),
            format!("PUT {CMS}/a"),
            format!("PATCH {CMS}/a\n{merge}"),
            format!("POST {CMS}"),
            "PUT /apis/apps/v1/namespaces/ns/deployments/d/scale".into(),
            "GET /apis/apps/v1/namespaces/ns/deployments/d/status".into(),
            "GET /metrics".into(),
            "POST /debug/headwater/compact?revision=1".into(),
        ] {
            let request = format!("{request}\nAuthorization: Bearer {USER}");
            row.refused(&request, config_map("a").to_string(), 403, "Forbidden");
        }
        // The decision precedes reading the body and does not reveal whether the object exists.
        for name in ["a", "nosuch"] {
            let request = format!("PUT {CMS}/{name}\nAuthorization: Bearer {USER}");
            row.refused(&request, "{", 403, "Forbidden");
        }
    });
    suite.row(70, |row| {
        for target in ["/api/v1/namespaces/ns/nodes", "/api/v1/namespaces/ns/nodes/n"] {
            row.refused(&format!("GET {target}"), "", 404, "NotFound");
        }
        let target = "/apis/rbac.authorization.k8s.io/v1/namespaces/ns/clusterroles";
        row.refused(&format!("POST {target}"), "{}", 404, "NotFound");
    });
    suite.row(71, |row| {
        for namespace in ["..", ".", "%2e%2e", "%2E"] {
            row.bad_request(&format!("GET /api/v1/namespaces/{namespace}/configmaps"), "");
            row.bad_request(
                &format!("POST /api/v1/namespaces/{namespace}/configmaps"),
                json!({"metadata": {"name": "v", "namespace": ".."}}).to_string(),
            );
        }
    });
    suite.row(75, |row| {
        for namespace in ["default", "kube-system", "kube-public"] {
            let target = format!("DELETE /api/v1/namespaces/{namespace}");
            row.refused(&target, "", 403, "Forbidden");
        }
    });
}
