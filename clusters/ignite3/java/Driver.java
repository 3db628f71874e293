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
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.logging.LogManager;
import org.apache.ignite.client.IgniteClient;
import org.apache.ignite.client.IgniteClientConnectionException;
import org.apache.ignite.lang.ErrorGroups;
import org.apache.ignite.lang.IgniteException;
import org.apache.ignite.table.KeyValueView;
import org.apache.ignite.table.mapper.Mapper;
import org.apache.ignite.tx.Transaction;
import org.apache.ignite.tx.TransactionOptions;

/**
 * Many connections of the official thin client behind one pair of pipes: a JSON object a line in,
 * one a line out, answers in the order in which they come.
 *
 * <p>A request is {"id", "op", "conn", ...}; its answer {"id"} with a result, or with "code" (as
 * "TX-4"; "CLIENT-..." where no server spoke) and "text". Nothing is tried twice. A connection
 * dials one address and has at most one transaction. The end of the input ends the process.
 */
public final class Driver {
    private static final String LOST = "DRIVER-CONNECTION-LOST";
    private static final String MISUSE = "DRIVER-MISUSE";
    private static final String UNKNOWN = "DRIVER-UNKNOWN";
    private static final int TEXT_LIMIT = 400;
    private static final long HEARTBEAT_MS = 1_000;
    private static final long HEARTBEAT_LIMIT_MS = 3_000;

    private static final class Connection {
        final IgniteClient client;
        volatile String table;
        volatile KeyValueView<Long, String> view;
        volatile Transaction tx;

        Connection(IgniteClient client) {
            this.client = client;
        }
    }

    private final ObjectMapper json = new ObjectMapper();
    private final Map<Long, Connection> connections = new ConcurrentHashMap<>();
    private final Set<Long> dropped = ConcurrentHashMap.newKeySet();
    private final PrintStream out;

    private Driver(PrintStream out) {
        this.out = out;
    }

    public static void main(String[] args) throws IOException {
        LogManager.getLogManager().reset();
        Driver driver = new Driver(new PrintStream(System.out, false, StandardCharsets.UTF_8));
        BufferedReader in =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            driver.take(line);
        }
        Runtime.getRuntime().halt(0); // clients that wait for a silent node would hold us up
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
                return CompletableFuture.completedFuture(codes(answer));
            case "connect":
                return connect(number, request, answer);
            case "close":
                close(number);
                return CompletableFuture.completedFuture(answer);
            default:
                Connection at = connections.get(number);
                if (at == null) {
                    throw new IllegalStateException("no connection " + number);
                }
                return act(at, request, answer);
        }
    }

    private CompletableFuture<ObjectNode> connect(long number, JsonNode request, ObjectNode answer) {
        return IgniteClient.builder()
                .addresses(request.path("host").asText() + ":" + request.path("port").asInt())
                .connectTimeout(request.path("limit_ms").asLong())
                .heartbeatInterval(HEARTBEAT_MS)
                .heartbeatTimeout(HEARTBEAT_LIMIT_MS)
                .backgroundReconnectInterval(0)
                .retryPolicy(null)
                .buildAsync()
                .thenApply(
                        client -> {
                            connections.put(number, new Connection(client));
                            if (dropped.remove(number)) {
                                close(number);
                            }
                            return answer;
                        });
    }

    private CompletableFuture<ObjectNode> act(Connection at, JsonNode request, ObjectNode answer) {
        switch (request.path("op").asText()) {
            case "sql":
                return at.client
                        .sql()
                        .executeAsync((Transaction) null, request.path("text").asText())
                        .thenCompose(rows -> rows.closeAsync())
                        .thenApply(done -> answer);
            case "open":
                return open(at, request.path("table").asText(), answer);
            case "begin":
                TransactionOptions options =
                        new TransactionOptions()
                                .readOnly(request.path("read_only").asBoolean())
                                .timeoutMillis(request.path("limit_ms").asLong());
                return at.client
                        .transactions()
                        .beginAsync(options)
                        .thenApply(
                                tx -> {
                                    at.tx = tx;
                                    return answer;
                                });
            case "get":
                return view(at)
                        .getAsync(open(at), request.path("key").asLong())
                        .thenApply(value -> answer.put("value", value));
            case "put":
                String value = request.path("value").asText();
                return view(at)
                        .putAsync(open(at), request.path("key").asLong(), value)
                        .thenApply(done -> answer);
            case "sql-get":
                return select(at, open(at), new Object[] {request.path("key").asLong()})
                        .thenApply(found -> answer.put("value", found.get(0)));
            case "sql-put":
                return store(
                                at,
                                open(at),
                                request.path("key").asLong(),
                                request.path("value").asText())
                        .thenApply(done -> answer);
            case "select": // one statement outside of a transaction
                return select(at, null, keys(request))
                        .thenApply(
                                found -> {
                                    ArrayNode values = answer.putArray("values");
                                    found.forEach(values::add);
                                    return answer;
                                });
            case "commit":
                return ended(at).commitAsync().thenApply(done -> answer);
            case "rollback":
                return ended(at).rollbackAsync().thenApply(done -> answer);
            default:
                throw new IllegalStateException("no operation " + request.path("op"));
        }
    }

    private static CompletableFuture<ObjectNode> open(
            Connection at, String table, ObjectNode answer) {
        return at.client
                .tables()
                .tableAsync(table)
                .thenApply(
                        found -> {
                            if (found == null) {
                                throw new IllegalStateException("no table " + table);
                            }
                            at.table = table;
                            at.view =
                                    found.keyValueView(
                                            Mapper.of(Long.class), Mapper.of(String.class));
                            return answer;
                        });
    }

    private static Object[] keys(JsonNode request) {
        List<Object> keys = new ArrayList<>();
        request.path("keys").forEach(key -> keys.add(key.asLong()));
        return keys.toArray();
    }

    /** The values of {@code keys} in their order, by one statement; null where there is none. */
    private static CompletableFuture<List<String>> select(
            Connection at, Transaction tx, Object[] keys) {
        view(at); // so that the table is known
        String places = String.join(", ", Collections.nCopies(keys.length, "?"));
        String text = "SELECT K, V FROM " + at.table + " WHERE K IN (" + places + ")";
        return at.client
                .sql()
                .executeAsync(tx, text, keys)
                .thenCompose(
                        rows -> {
                            if (rows.hasMorePages()) {
                                throw new IllegalStateException("more than one page of keys");
                            }
                            Map<Long, String> found = new HashMap<>();
                            rows.currentPage()
                                    .forEach(row -> found.put(row.longValue(0), row.value(1)));
                            List<String> values = new ArrayList<>();
                            for (Object key : keys) {
                                values.add(found.get(key));
                            }
                            return rows.closeAsync().thenApply(done -> values);
                        });
    }

    /** An update, and an insert where there was nothing to update. */
    private static CompletableFuture<Void> store(
            Connection at, Transaction tx, long key, String value) {
        view(at);
        return at.client
                .sql()
                .executeAsync(tx, "UPDATE " + at.table + " SET V = ? WHERE K = ?", value, key)
                .thenCompose(
                        rows ->
                                rows.affectedRows() > 0
                                        ? rows.closeAsync()
                                        : insert(at, tx, key, value));
    }

    private static CompletableFuture<Void> insert(
            Connection at, Transaction tx, long key, String value) {
        return at.client
                .sql()
                .executeAsync(
                        tx, "INSERT INTO " + at.table + " (K, V) VALUES (?, ?)", key, value)
                .thenCompose(rows -> rows.closeAsync());
    }

    /** Every code that the release's client may name, as "TX-4 ACQUIRE_LOCK_ERR". */
    private static ObjectNode codes(ObjectNode answer) {
        ArrayNode values = answer.putArray("values");
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
        return answer;
    }

    private static KeyValueView<Long, String> view(Connection at) {
        if (at.view == null) {
            throw new IllegalStateException("no table is open");
        }
        return at.view;
    }

    private static Transaction open(Connection at) {
        if (at.tx == null) {
            throw new IllegalStateException("no transaction is open");
        }
        return at.tx;
    }

    private static Transaction ended(Connection at) {
        Transaction tx = open(at);
        at.tx = null;
        return tx;
    }

    /** Drops the connection without waiting: the server gives up what is open on it. */
    private void close(long number) {
        Connection at = connections.remove(number);
        if (at != null) {
            CompletableFuture.runAsync(at.client::close);
        } else {
            dropped.add(number); // it may be on its way
        }
    }

    private static ObjectNode failed(ObjectNode answer, Throwable error) {
        Throwable cause = error;
        while ((cause instanceof CompletionException || cause instanceof ExecutionException)
                && cause.getCause() != null) {
            cause = cause.getCause();
        }
        String text = cause.getClass().getSimpleName() + ": " + cause.getMessage();
        return answer.put("code", code(cause))
                .put("text", text.substring(0, Math.min(text.length(), TEXT_LIMIT)));
    }

    private static String code(Throwable error) {
        if (error instanceof IllegalStateException || error instanceof IllegalArgumentException) {
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
