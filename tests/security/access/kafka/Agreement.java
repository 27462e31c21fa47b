import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetAddress;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/**
 * Answers questions with Kafka's own authorizer. Lines with tabs between: "rules" UNLESS_TOLD begins a new set, "acl"
 * TYPE NAME PATTERN PRINCIPAL HOST OPERATION PERMISSION adds to it, "ask" PRINCIPAL HOST OPERATION TYPE NAME asks of
 * it. The answer to each question is a line: whether it is allowed, and whether it is by type.
 */
public class Agreement {
    private static Map<Uuid, StandardAcl> acls = new HashMap<>();
    private static StandardAuthorizer authorizer;
    private static String unlessTold;

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t");
            if (words[0].equals("rules")) {
                acls = new HashMap<>();
                authorizer = null;
                unlessTold = words[1];
            } else if (words[0].equals("acl")) {
                acls.put(Uuid.randomUuid(), StandardAcl.fromAclBinding(new AclBinding(
                    new ResourcePattern(ResourceType.fromString(words[1]), words[2], PatternType.fromString(words[3])),
                    new AccessControlEntry(words[4], words[5], AclOperation.fromString(words[6]),
                        AclPermissionType.fromString(words[7])))));
            } else {
                out.println(answer(words));
            }
        }
        out.flush();
    }

    private static String answer(String[] words) throws Exception {
        if (authorizer == null) {
            authorizer = new StandardAuthorizer();
            authorizer.configure(Map.of("super.users", "User:root", "allow.everyone.if.no.acl.found", unlessTold));
            authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), Map.of()));
            authorizer.loadSnapshot(acls);
            authorizer.completeInitialLoad();
        }
        Context context = new Context(words[1], words[2]);
        AclOperation operation = AclOperation.fromString(words[3]);
        ResourceType type = ResourceType.fromString(words[4]);
        ResourcePattern resource = new ResourcePattern(type, words[5], PatternType.LITERAL);
        AuthorizationResult one =
            authorizer.authorize(context, List.of(new Action(operation, resource, 1, false, false))).get(0);
        AuthorizationResult any = authorizer.authorizeByResourceType(context, operation, type);
        return (one == AuthorizationResult.ALLOWED) + "\t" + (any == AuthorizationResult.ALLOWED);
    }

    private record Context(String user, String host) implements AuthorizableRequestContext {
        public String listenerName() { return "PLAINTEXT"; }
        public SecurityProtocol securityProtocol() { return SecurityProtocol.PLAINTEXT; }
        public KafkaPrincipal principal() {
            String[] parts = user.split(":", 2);
            return new KafkaPrincipal(parts[0], parts[1]);
        }
        public InetAddress clientAddress() {
            try {
                return InetAddress.getByName(host);
            } catch (java.net.UnknownHostException error) {
                throw new IllegalArgumentException(error);
            }
        }
        public int requestType() { return 3; }
        public int requestVersion() { return 12; }
        public String clientId() { return "agreement"; }
        public int correlationId() { return 1; }
    }
}
