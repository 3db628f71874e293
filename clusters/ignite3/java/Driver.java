import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.logging.LogManager;
import org.apache.ignite.client.IgniteClientConnectionException;
import org.apache.ignite.lang.ErrorGroups;
import org.apache.ignite.lang.IgniteException;

/**
 * Many connections of the official thin client behind one pair of pipes: a JSON object a line in,
 * one a line out, answers in the order in which they come.
 *
 * <p>A request is {"id", "op", "conn", ...}; its answer {"id"} with a result, or with "code" (as
 * "TX-4"; "DRIVER-..." where no server spoke) and "text". Nothing is tried twice. A connection
 * dials one address and has at most one transaction. The end of the input ends the process; so does
 * what no answer could mend (a line that is no request, no memory, no threads), with the reason on
 * standard error: whoever reads starts another process, and knows why.
 */
public final class Driver {
    private static final String LOST = "DRIVER-CONNECTION-LOST";
    private static final String MISUSE = "DRIVER-MISUSE";
    private static final String UNKNOWN = "DRIVER-UNKNOWN";
    private static final int TEXT_LIMIT = 400;
    private static final int FAILED = 70;

    private final ObjectMapper json = new ObjectMapper();
    // Those that are on their way, too: whoever closes one of them closes it when it is there.
    private final Map<Long, CompletableFuture<Connection>> connections = new ConcurrentHashMap<>();
    private final PrintStream out;

    private Driver(PrintStream out) {
        this.out = out;
    }

    public static void main(String[] args) {
        try {
            LogManager.getLogManager().reset();
            Driver driver = new Driver(new PrintStream(System.out, false, StandardCharsets.UTF_8));
            BufferedReader in =
                    new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                driver.take(line);
            }
            Runtime.getRuntime().halt(0); // clients that wait for a silent node would hold us up
        } catch (IOException | RuntimeException | Error error) {
            end(error);
        } finally {
            Runtime.getRuntime().halt(FAILED); // also where there was no memory to say why
        }
    }

    /** The threads of clients would keep a process that nobody listens in. */
    private static void end(Throwable error) {
        try {
            System.err.println(error);
            System.err.flush();
        } finally {
            Runtime.getRuntime().halt(FAILED);
        }
    }

    private void take(String line) throws JsonProcessingException {
        JsonNode request = json.readTree(line);
        ObjectNode answer = json.createObjectNode().put("id", request.path("id").asLong());
        CompletableFuture<ObjectNode> work;
        try {
            work = serve(request, answer);
        } catch (RuntimeException error) {
            work = CompletableFuture.failedFuture(error);
        }
        work.whenComplete((done, error) -> say(error == null ? done : failed(answer, error)));
    }

    private CompletableFuture<ObjectNode> serve(JsonNode request, ObjectNode answer) {
        long number = request.path("conn").asLong();
        switch (request.path("op").asText()) {
            case "ping":
                return CompletableFuture.completedFuture(answer);
            case "codes":
                return CompletableFuture.completedFuture(answer.set("values", codes()));
            case "connect":
                return connect(number, request).thenApply(done -> answer);
            case "close":
                close(number);
                return CompletableFuture.completedFuture(answer);
            default:
                return act(known(number), request, answer);
        }
    }

    private CompletableFuture<Connection> connect(long number, JsonNode request) {
        String address = request.path("host").asText() + ":" + request.path("port").asInt();
        CompletableFuture<Connection> dialed =
                Connection.dial(address, request.path("limit_ms").asLong());
        connections.put(number, dialed);
        return dialed.whenComplete(
                (done, error) -> {
                    if (error != null) {
                        connections.remove(number, dialed);
                    }
                });
    }

    private void close(long number) {
        CompletableFuture<Connection> dialed = connections.remove(number);
        if (dialed != null) {
            dialed.thenAccept(Connection::close);
        }
    }

    private Connection known(long number) {
        CompletableFuture<Connection> dialed = connections.get(number);
        if (dialed == null || !dialed.isDone() || dialed.isCompletedExceptionally()) {
            throw new Connection.Misuse("no connection " + number);
        }
        return dialed.join();
    }

    private CompletableFuture<ObjectNode> act(Connection at, JsonNode request, ObjectNode answer) {
        String op = request.path("op").asText();
        switch (op) {
            case "get":
            case "sql-get":
                long key = request.path("key").asLong();
                return (op.equals("get") ? at.get(key) : at.sqlGet(key))
                        .thenApply(value -> answer.put("value", value));
            case "select":
                return at.select(keys(request))
                        .thenApply(values -> answer.set("values", json.valueToTree(values)));
            case "query":
                return at.query(request.path("text").asText())
                        .thenApply(rows -> answer.set("rows", json.valueToTree(rows)));
            default:
                return done(at, op, request).thenApply(nothing -> answer);
        }
    }

    /** What has no result. */
    private static CompletableFuture<Void> done(Connection at, String op, JsonNode request) {
        long key = request.path("key").asLong();
        String value = request.path("value").asText();
        switch (op) {
            case "sql":
                return at.execute(request.path("text").asText());
            case "open":
                return at.use(request.path("table").asText());
            case "begin":
                long limitMs = request.path("limit_ms").asLong();
                return at.begin(request.path("read_only").asBoolean(), limitMs);
            case "put":
                return at.put(key, value);
            case "sql-put":
                return at.sqlPut(key, value);
            case "commit":
                return at.commit();
            case "rollback":
                return at.rollback();
            default:
                throw new Connection.Misuse("no operation " + op);
        }
    }

    private static Object[] keys(JsonNode request) {
        List<Object> keys = new ArrayList<>();
        request.path("keys").forEach(key -> keys.add(key.asLong()));
        return keys.toArray();
    }

    /** Every code that the release's client may name, as "TX-4 ACQUIRE_LOCK_ERR". */
    private ArrayNode codes() {
        ArrayNode values = json.createArrayNode();
        for (Class<?> group : ErrorGroups.class.getDeclaredClasses()) {
            for (Field field : group.getDeclaredFields()) {
                if (Modifier.isStatic(field.getModifiers()) && field.getType() == int.class) {
                    try {
                        int code = field.getInt(null);
                        String name = ErrorGroups.errorGroupByCode(code).name();
                        values.add(name + "-" + (code & 0xFFFF) + " " + field.getName());
                    } catch (IllegalAccessException error) {
                        throw new IllegalStateException(error);
                    }
                }
            }
        }
        return values;
    }

    private static ObjectNode failed(ObjectNode answer, Throwable error) {
        Throwable cause = cause(error);
        if (cause instanceof VirtualMachineError) {
            end(cause);
        }
        String text = cause.getClass().getSimpleName() + ": " + cause.getMessage();
        return answer.put("code", code(cause))
                .put("text", text.substring(0, Math.min(text.length(), TEXT_LIMIT)));
    }

    private static Throwable cause(Throwable error) {
        Throwable cause = error;
        while ((cause instanceof CompletionException || cause instanceof ExecutionException)
                && cause.getCause() != null) {
            cause = cause.getCause();
        }
        return cause;
    }

    /** {@code error} as what may be thrown where nothing checked is expected. */
    static RuntimeException unchecked(Throwable error) {
        Throwable cause = cause(error);
        if (cause instanceof Error) {
            throw (Error) cause;
        }
        return cause instanceof RuntimeException
                ? (RuntimeException) cause
                : new CompletionException(cause);
    }

    private static String code(Throwable error) {
        if (error instanceof Connection.Misuse) {
            return MISUSE;
        }
        if (error instanceof IgniteClientConnectionException) {
            return LOST;
        }
        if (error instanceof IgniteException) {
            String code = ((IgniteException) error).codeAsString(); // as IGN-TX-4
            return code.startsWith("IGN-") ? code.substring("IGN-".length()) : code;
        }
        return UNKNOWN;
    }

    private void say(ObjectNode answer) {
        synchronized (out) {
            out.println(answer);
            out.flush();
        }
    }
}
