/** Control: a service that is about half busy, with stages of like cost, little garbage and no shared lock. */
public class Healthy {
    static int parse(int seed) {
        int mixed = seed;
        for (int n = 0; n < 300_000; n++) {
            mixed = mixed * 31 + (mixed >>> 7);
        }
        return mixed;
    }

    static int decode(int seed) {
        int mixed = seed;
        for (int n = 0; n < 300_000; n++) {
            mixed ^= mixed << 13;
            mixed ^= mixed >>> 17;
            mixed ^= mixed << 5;
        }
        return mixed;
    }

    static int encode(int seed) {
        StringBuilder text = new StringBuilder();
        for (int n = 0; n < 500; n++) {
            text.append(seed + n);
        }
        return text.toString().hashCode();
    }

    public static void main(String[] arguments) throws InterruptedException {
        long end = System.nanoTime() + 3_000_000_000L;
        int mixed = 1;
        while (System.nanoTime() < end) {
            mixed = encode(decode(parse(mixed)));
            Thread.sleep(1);
        }
        System.out.println(mixed == 42 ? "rare" : "");
    }
}
