import java.util.concurrent.locks.ReentrantLock;

/** Planted: as LockContention, with a ReentrantLock. */
public class ReentrantContention {
    static final ReentrantLock CACHE = new ReentrantLock();

    static void lookup() throws InterruptedException {
        CACHE.lock(); // planted: lock-contention
        try {
            Thread.sleep(30);
        } finally {
            CACHE.unlock();
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
