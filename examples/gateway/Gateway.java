import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A gateway in front of the inference service: parses a request, counts its tokens, answers from a cache what it
 * answered before, and forwards the rest. {@code java Gateway.java SERVICE_URL [PORT]} prints its own address.
 */
public final class Gateway {
    private static final int MAX_BODY_BYTES = 1 << 20;
    private static final int MAX_WORDS = 4096;
    private static final Pattern PROMPT = Pattern.compile("\"prompt\"\\s*:\\s*\"((?:[^\"\\\\]|\\\\.)*+)\"");
    private static final Pattern WORD = Pattern.compile("[\\p{L}\\p{N}]+|[^\\s\\p{L}\\p{N}]");

    private final HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private final Cache cache = new Cache(512);
    private final URI service;

    private Gateway(URI service) {
        this.service = service;
    }

    /** Answers by request body, least recently used first out. One lock guards it, as in many a real gateway. */
    private static final class Cache {
        private final Map<String, byte[]> answers;

        Cache(int capacity) {
            answers = new LinkedHashMap<>(capacity, 0.75f, true) {
                @Override
                protected boolean removeEldestEntry(Map.Entry<String, byte[]> eldest) {
                    return size() > capacity;
                }
            };
        }

        synchronized byte[] get(String key) {
            return answers.get(key);
        }

        synchronized void put(String key, byte[] answer) {
            answers.put(key, answer);
        }
    }

    private void generate(HttpExchange exchange) throws IOException {
        if (!exchange.getRequestMethod().equals("POST")) {
            answer(exchange, 405, error("POST only"));
            return;
        }
        byte[] raw = exchange.getRequestBody().readNBytes(MAX_BODY_BYTES + 1);
        if (raw.length > MAX_BODY_BYTES) {
            answer(exchange, 413, error("the body is too large"));
            return;
        }
        String body = new String(raw, StandardCharsets.UTF_8);
        Matcher prompt = PROMPT.matcher(body);
        if (!prompt.find()) {
            answer(exchange, 400, error("prompt must be a string"));
            return;
        }
        if (WORD.matcher(prompt.group(1)).results().limit(MAX_WORDS + 1).count() > MAX_WORDS) {
            answer(exchange, 400, error("the prompt has more than " + MAX_WORDS + " words"));
            return;
        }
        byte[] known = cache.get(body);
        if (known != null) {
            answer(exchange, 200, known);
            return;
        }
        HttpResponse<byte[]> response;
        try {
            response = forward(raw);
        } catch (IOException e) {
            answer(exchange, 502, error("the service didn't answer"));
            return;
        }
        if (response.statusCode() == 200) {
            cache.put(body, response.body());
        }
        answer(exchange, response.statusCode(), response.body());
    }

    private HttpResponse<byte[]> forward(byte[] body) throws IOException {
        HttpRequest request = HttpRequest.newBuilder(service.resolve("/v1/generate"))
                .timeout(Duration.ofSeconds(60))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofByteArray(body))
                .build();
        try {
            return client.send(request, HttpResponse.BodyHandlers.ofByteArray());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException(e);
        }
    }

    private static byte[] error(String message) {
        return ("{\"error\": \"" + message + "\"}").getBytes(StandardCharsets.UTF_8);
    }

    private static void answer(HttpExchange exchange, int status, byte[] body) throws IOException {
        exchange.getResponseHeaders().set("Content-Type", "application/json");
        exchange.sendResponseHeaders(status, body.length);
        exchange.getResponseBody().write(body);
        exchange.close();
    }

    public static void main(String[] args) throws IOException {
        if (args.length < 1 || args.length > 2) {
            System.err.println("usage: java Gateway.java SERVICE_URL [PORT]");
            System.exit(2);
        }
        // HttpServer sends a response in two segments; with Nagle's algorithm the second waits for a delayed ACK.
        System.setProperty("sun.net.httpserver.nodelay", "true");
        int port = args.length == 2 ? Integer.parseInt(args[1]) : 0;
        Gateway gateway = new Gateway(URI.create(args[0]));
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), 128);
        server.createContext("/v1/generate", gateway::generate);
        server.createContext("/healthz", exchange -> answer(exchange, 200, "{\"status\": \"ok\"}".getBytes()));
        int[] count = {0};
        server.setExecutor(Executors.newFixedThreadPool(8, task -> new Thread(task, "gateway-" + count[0]++)));
        server.start();
        System.out.println("http://127.0.0.1:" + server.getAddress().getPort());
    }
}
