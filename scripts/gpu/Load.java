import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.List;

/** What a gateway beside a model does: java Load.java SECONDS hash,alloc runs one busy thread for each kind of work. */
public class Load {
    static final byte[] BLOCK = new byte[1 << 16];
    static volatile long sink;

    static void hash() throws Exception {
        sink += MessageDigest.getInstance("SHA-256").digest(BLOCK)[0];
    }

    /** Makes many short strings, as careless tokenizing does. */
    static void tokenize() {
        List<byte[]> tokens = new ArrayList<>();
        for (int i = 0; i < 2_000; i++) {
            tokens.add(("token " + i).getBytes(StandardCharsets.UTF_8));
        }
        sink += tokens.size();
    }

    public static void main(String[] arguments) throws Exception {
        long end = System.nanoTime() + (long) (Double.parseDouble(arguments[0]) * 1e9);
        List<Thread> threads = new ArrayList<>();
        for (String kind : arguments[1].split(",")) {
            Thread thread = new Thread(() -> work(kind, end), "w-" + kind);
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    static void work(String kind, long end) {
        try {
            while (System.nanoTime() < end) {
                switch (kind) {
                    case "hash" -> hash();
                    case "alloc" -> tokenize();
                    default -> throw new IllegalArgumentException(kind);
                }
            }
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }
}
