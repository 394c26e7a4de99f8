import java.io.*;
import java.lang.management.*;
import java.net.*;
import java.util.concurrent.locks.*;

/** Does known things one after the other and says when, by System.nanoTime(), which is CLOCK_MONOTONIC on Linux. */
public class Phases {
    static final Object MONITOR = new Object();
    static final ReentrantLock LOCK = new ReentrantLock();
    static volatile long sink;
    static volatile Object kept;
    static volatile boolean reading;

    interface Body {
        void run() throws Exception;
    }

    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    static void mark(String name, Body body) throws Exception {
        long start = System.nanoTime();
        body.run();
        say("mark " + name + " " + start + " " + System.nanoTime());
    }

    /** Uses that much time on a CPU, however busy the machine is. */
    static void burn(long millis) {
        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        long end = threads.getCurrentThreadCpuTime() + millis * 1_000_000L;
        while (threads.getCurrentThreadCpuTime() < end) for (int i = 0; i < 1_000_000; i++) sink++;
    }

    static void deep(int levels) {
        if (levels == 0) burn(300);
        else deep(levels - 1);
    }

    static Thread thread(String name, Body body) {
        Thread thread = new Thread(() -> {
            try {
                body.run();
            } catch (Exception error) {
                error.printStackTrace();
            }
        }, name);
        thread.start();
        return thread;
    }

    static void monitor() throws Exception {
        Thread[] waiter = new Thread[1];
        synchronized (MONITOR) {
            waiter[0] = thread("ps-blocked", () -> mark("monitor", () -> {
                synchronized (MONITOR) {
                    sink++;
                }
            }));
            while (waiter[0].getState() != Thread.State.BLOCKED) Thread.onSpinWait();
            Thread.sleep(60);
        }
        waiter[0].join();
    }

    static void park() throws Exception {
        LOCK.lock();
        Thread waiter = thread("ps-parked", () -> mark("park", () -> {
            LOCK.lock();
            LOCK.unlock();
        }));
        while (waiter.getState() != Thread.State.WAITING) Thread.onSpinWait();
        Thread.sleep(50);
        LOCK.unlock();
        waiter.join();
    }

    static void socket() throws Exception {
        try (ServerSocket server = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            Thread peer = thread("ps-peer", () -> {
                try (Socket accepted = server.accept()) {
                    while (!reading) Thread.onSpinWait();
                    Thread.sleep(150);
                    accepted.getOutputStream().write(new byte[123]);
                }
            });
            try (Socket socket = new Socket(server.getInetAddress(), server.getLocalPort())) {
                say("port " + server.getLocalPort());
                byte[] buffer = new byte[1000];
                mark("socket", () -> {
                    reading = true;
                    sink += socket.getInputStream().read(buffer);
                });
            }
            peer.join();
        }
    }

    /** 300 MB, spread over a time in which the JVM's limit on allocation samples lets some through all along. */
    static void allocate() throws Exception {
        for (int round = 0; round < 60; round++) {
            for (int i = 0; i < 50; i++) kept = new byte[100_000];
            Thread.sleep(10);
        }
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        say("ready " + ProcessHandle.current().pid());
        for (String order; (order = orders.readLine()) != null && !order.equals("return"); ) {
            if (order.equals("exit")) System.exit(0);
            if (order.equals("halt")) Runtime.getRuntime().halt(3);
            if (order.equals("throw")) throw new IllegalStateException("as told");
            if (order.equals("burn")) thread("ps-last", () -> mark("last", () -> burn(600))).join();
            if (order.equals("phases")) {
                thread("ps-burner", () -> mark("burn", () -> burn(400))).join();
                thread("ps-deep", () -> mark("deep", () -> deep(100))).join();
                thread("ps-sleeper", () -> mark("sleep", () -> Thread.sleep(70))).join();
                monitor();
                park();
                thread("ps-reader", Phases::socket).join();
                thread("ps-gc", () -> mark("gc", System::gc)).join();
                thread("ps-allocator", () -> mark("allocate", Phases::allocate)).join();
            }
            say("done " + order);
        }
    }
}
