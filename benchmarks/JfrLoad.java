import java.io.*;
import java.net.*;
import java.nio.file.*;
import java.util.concurrent.atomic.LongAdder;
import java.util.concurrent.locks.LockSupport;

/** Work that Java Flight Recorder has events for: {@code java JfrLoad.java gc|mixed STEPS}. */
public class JfrLoad {
    static volatile Object kept;
    static volatile long sink;
    static final LongAdder done = new LongAdder();

    interface Step {
        void run() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        long steps = Long.parseLong(arguments[1]);
        if (arguments[0].equals("gc")) {
            while (steps-- > 0) kept = new byte[1000];
        } else {
            mixed();
            while (done.sum() < steps) Thread.sleep(10);
        }
        System.exit(0); // the threads below never end
    }

    /** What a busy server does: threads that wait, sleep, start, write files, talk, compute and make garbage. */
    static void mixed() throws Exception {
        for (int i = 0; i < 12; i++) repeat("park-" + i, () -> LockSupport.parkNanos(1_200_000));
        for (int i = 0; i < 4; i++) repeat("sleep-" + i, () -> Thread.sleep(6));
        for (int i = 0; i < 3; i++) {
            Object monitor = new Object();
            for (int k = 0; k < 2; k++) {
                repeat("monitor-" + i + k, () -> {
                    synchronized (monitor) {
                        monitor.wait(2);
                        Thread.sleep(1);
                    }
                });
            }
        }
        repeat("starter", () -> {
            Thread.sleep(2);
            new Thread(() -> sink++, "started").start();
        });
        Path file = Files.createTempFile("jfr-load", ".bin");
        file.toFile().deleteOnExit();
        RandomAccessFile opened = new RandomAccessFile(file.toFile(), "rw");
        repeat("file", () -> {
            Thread.sleep(2);
            opened.seek(0);
            opened.write(new byte[4096]);
            opened.getChannel().force(false);
        });
        ServerSocket server = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
        Socket client = new Socket(server.getInetAddress(), server.getLocalPort());
        OutputStream out = server.accept().getOutputStream();
        InputStream in = client.getInputStream();
        repeat("talker", () -> {
            Thread.sleep(2);
            out.write(1);
        });
        repeat("listener", () -> sink += in.read());
        repeat("computer", () -> {
            for (int depth = 1; depth < 40; depth++) deep(depth);
            kept = new byte[20_000];
        });
    }

    static void deep(int levels) {
        if (levels > 0) deep(levels - 1);
        else for (int i = 0; i < 10_000; i++) sink++;
    }

    static void repeat(String name, Step step) {
        Thread thread = new Thread(() -> {
            try {
                while (true) {
                    step.run();
                    done.increment();
                }
            } catch (Exception error) {
                error.printStackTrace();
            }
        }, name);
        thread.setDaemon(true);
        thread.start();
    }
}
