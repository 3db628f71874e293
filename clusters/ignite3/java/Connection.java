import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.ignite.client.IgniteClientConfiguration;
import org.apache.ignite.internal.client.IgniteClientConfigurationImpl;
import org.apache.ignite.internal.client.TcpIgniteClient;
import org.apache.ignite.internal.hlc.HybridTimestampTracker;
import org.apache.ignite.lang.ErrorGroups;
import org.apache.ignite.sql.SqlRow;
import org.apache.ignite.sql.async.AsyncResultSet;
import org.apache.ignite.table.KeyValueView;
import org.apache.ignite.table.mapper.Mapper;
import org.apache.ignite.tx.Transaction;
import org.apache.ignite.tx.TransactionOptions;

/** One client of one address, its table, and at most one open transaction. */
final class Connection {
    private static final long HEARTBEAT_MS = 1_000;
    private static final long HEARTBEAT_LIMIT_MS = 3_000;
    private static final int MOST_ROWS = 10_000;

    /** A request that no connection in this state can be asked. */
    static final class Misuse extends RuntimeException {
        private static final long serialVersionUID = 1L;

        Misuse(String text) {
            super(text);
        }
    }

    private final TcpIgniteClient client;
    private volatile String table;
    private volatile KeyValueView<Long, String> view;
    private volatile Transaction tx;

    private Connection(TcpIgniteClient client) {
        this.client = client;
    }

    /**
     * Dials one address, once. A dial that fails leaves nothing behind: the library's own builder
     * keeps a thread and selectors for each, and gives nobody anything to close.
     */
    static CompletableFuture<Connection> dial(String address, long limitMs) {
        ErrorGroups.initialize();
        TcpIgniteClient client = unconnected(address, limitMs);
        CompletableFuture<?> dialed;
        try {
            dialed = connected(client);
        } catch (RuntimeException | Error error) {
            drop(client);
            throw error;
        }
        return dialed.handle(
                (channel, error) -> {
                    if (error != null) {
                        drop(client);
                        throw Driver.unchecked(error);
                    }
                    return new Connection(client);
                });
    }

    private static TcpIgniteClient unconnected(String address, long limitMs) {
        IgniteClientConfiguration wanted =
                new IgniteClientConfigurationImpl(
                        null, // no finder of addresses
                        new String[] {address},
                        limitMs,
                        0, // no reconnecting by itself
                        null, // continue where the answer is read
                        HEARTBEAT_MS,
                        HEARTBEAT_LIMIT_MS,
                        null, // no retries
                        null, // no log
                        null, // no TLS
                        false, // no metrics
                        null, // nobody signs in
                        IgniteClientConfiguration.DFLT_OPERATION_TIMEOUT,
                        IgniteClientConfiguration.DFLT_SQL_PARTITION_AWARENESS_METADATA_CACHE_SIZE,
                        null);
        try {
            Constructor<TcpIgniteClient> made =
                    TcpIgniteClient.class.getDeclaredConstructor(
                            IgniteClientConfiguration.class, HybridTimestampTracker.class);
            made.setAccessible(true);
            return made.newInstance(wanted, HybridTimestampTracker.atomicTracker(null));
        } catch (InvocationTargetException error) {
            throw Driver.unchecked(error.getCause());
        } catch (ReflectiveOperationException error) {
            throw new LinkageError("the release's client is made otherwise", error);
        }
    }

    private static CompletableFuture<?> connected(TcpIgniteClient client) {
        try {
            Method connecting = TcpIgniteClient.class.getDeclaredMethod("initAsync");
            connecting.setAccessible(true);
            return (CompletableFuture<?>) connecting.invoke(client);
        } catch (InvocationTargetException error) {
            throw Driver.unchecked(error.getCause());
        } catch (ReflectiveOperationException error) {
            throw new LinkageError("the release's client connects otherwise", error);
        }
    }

    /** Without waiting for the server. */
    private static void drop(TcpIgniteClient client) {
        CompletableFuture.runAsync(client::close);
    }

    /** Ends it without waiting: the server gives up what is open on it. */
    void close() {
        drop(client);
    }

    CompletableFuture<Void> execute(String text) {
        return client.sql()
                .executeAsync((Transaction) null, text)
                .thenCompose(rows -> rows.closeAsync());
    }

    /**
     * The result of one statement outside of a transaction: the names of its columns, then its
     * rows, whole numbers as they are and all else as text. Nothing where it has no rows.
     */
    CompletableFuture<List<List<Object>>> query(String text) {
        return client.sql()
                .executeAsync((Transaction) null, text)
                .thenCompose(
                        found -> {
                            List<List<Object>> rows = new ArrayList<>();
                            if (!found.hasRowSet()) {
                                return found.closeAsync().thenApply(done -> rows);
                            }
                            List<Object> names = new ArrayList<>();
                            found.metadata().columns().forEach(c -> names.add(c.name()));
                            rows.add(names);
                            return pages(found, rows);
                        });
    }

    private static CompletableFuture<List<List<Object>>> pages(
            AsyncResultSet<SqlRow> found, List<List<Object>> rows) {
        for (SqlRow row : found.currentPage()) {
            List<Object> cells = new ArrayList<>();
            for (int at = 0; at < row.columnCount(); at++) {
                cells.add(cell(row.value(at)));
            }
            rows.add(cells);
        }
        if (rows.size() > MOST_ROWS) {
            return found.closeAsync()
                    .thenApply(
                            done -> {
                                throw new Misuse("more than " + MOST_ROWS + " rows");
                            });
        }
        if (!found.hasMorePages()) {
            return found.closeAsync().thenApply(done -> rows);
        }
        return found.fetchNextPage().thenCompose(next -> pages(found, rows));
    }

    private static Object cell(Object value) {
        boolean whole =
                value instanceof Long
                        || value instanceof Integer
                        || value instanceof Short
                        || value instanceof Byte;
        return value == null || whole ? value : value.toString();
    }

    /** Looks the table up that all that follows is about. */
    CompletableFuture<Void> use(String name) {
        return client.tables()
                .tableAsync(name)
                .thenAccept(
                        found -> {
                            if (found == null) {
                                throw new Misuse("no table " + name);
                            }
                            table = name;
                            view =
                                    found.keyValueView(
                                            Mapper.of(Long.class), Mapper.of(String.class));
                        });
    }

    CompletableFuture<Void> begin(boolean readOnly, long limitMs) {
        TransactionOptions options =
                new TransactionOptions().readOnly(readOnly).timeoutMillis(limitMs);
        return client.transactions().beginAsync(options).thenAccept(begun -> tx = begun);
    }

    CompletableFuture<Void> commit() {
        return ended().commitAsync();
    }

    CompletableFuture<Void> rollback() {
        return ended().rollbackAsync();
    }

    CompletableFuture<String> get(long key) {
        return rows().getAsync(current(), key);
    }

    CompletableFuture<Void> put(long key, String value) {
        return rows().putAsync(current(), key, value);
    }

    CompletableFuture<String> sqlGet(long key) {
        return values(current(), new Object[] {key}).thenApply(found -> found.get(0));
    }

    /** An update, and an insert where there was nothing to update. */
    CompletableFuture<Void> sqlPut(long key, String value) {
        Transaction open = current();
        String name = named();
        return client.sql()
                .executeAsync(open, "UPDATE " + name + " SET V = ? WHERE K = ?", value, key)
                .thenCompose(
                        rows ->
                                rows.affectedRows() > 0
                                        ? rows.closeAsync()
                                        : insert(open, name, key, value));
    }

    private CompletableFuture<Void> insert(Transaction open, String name, long key, String value) {
        return client.sql()
                .executeAsync(open, "INSERT INTO " + name + " (K, V) VALUES (?, ?)", key, value)
                .thenCompose(rows -> rows.closeAsync());
    }

    /** The values of {@code keys} by one statement outside of a transaction. */
    CompletableFuture<List<String>> select(Object[] keys) {
        return values(null, keys);
    }

    /** The values of {@code keys} in their order; null where there is none. */
    private CompletableFuture<List<String>> values(Transaction open, Object[] keys) {
        String places = String.join(", ", Collections.nCopies(keys.length, "?"));
        String text = "SELECT K, V FROM " + named() + " WHERE K IN (" + places + ")";
        return client.sql()
                .executeAsync(open, text, keys)
                .thenCompose(
                        rows -> {
                            if (rows.hasMorePages()) {
                                throw new Misuse("more than one page of keys");
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

    private KeyValueView<Long, String> rows() {
        if (view == null) {
            throw new Misuse("no table is open");
        }
        return view;
    }

    private String named() {
        rows();
        return table;
    }

    private Transaction current() {
        if (tx == null) {
            throw new Misuse("no transaction is open");
        }
        return tx;
    }

    private Transaction ended() {
        Transaction ending = current();
        tx = null;
        return ending;
    }
}
