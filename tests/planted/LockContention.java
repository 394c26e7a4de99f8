/** Planted: four threads answer requests, and a monitor is held while a value is fetched from elsewhere. */
public class LockContention {
    static final Object CACHE = new Object();

    static void fetch() throws InterruptedException {
        Thread.sleep(30);
    }

    static void lookup() throws InterruptedException {
        synchronized (CACHE) { // planted: lock-contention
            fetch();
        }
    }

    public static void main(String[] arguments) throws InterruptedException {
        long end = System.nanoTime() + 3_000_000_000L;
        Thread[] threads = new Thread[4];
        for (int n = 0; n < threads.length; n++) {
            threads[n] = new Thread(() -> {
                try {
                    while (System.nanoTime() < end) {
                        lookup();
                        Thread.sleep(5);
                    }
                } catch (InterruptedException stop) {
                    return;
                }
            }, "request-" + n);
            threads[n].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }
}
