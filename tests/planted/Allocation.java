/** Planted: one place makes a fresh buffer on every call. The heap is large and nothing lives, so pauses stay short. */
public class Allocation {
    static volatile byte[] sink;

    static int parse(int seed) {
        byte[] buffer = new byte[64 * 1024]; // planted: jvm-allocation
        buffer[seed & 0xFFFF] = (byte) seed;
        sink = buffer;
        return buffer[seed & 0xFF];
    }

    static int work(int seed) {
        int mixed = seed;
        for (int n = 0; n < 4000; n++) {
            mixed = mixed * 31 + (mixed >>> 7);
        }
        return mixed;
    }

    public static void main(String[] arguments) {
        long end = System.nanoTime() + 3_000_000_000L;
        int mixed = 1;
        while (System.nanoTime() < end) {
            mixed = work(mixed) + parse(mixed);
        }
        System.out.println(mixed == 42 ? "rare" : "");
    }
}
