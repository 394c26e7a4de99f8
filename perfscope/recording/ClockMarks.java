import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.locks.LockSupport;

/** Parks by turns for some seconds and writes [thread id of the kernel, nanoTime before, nanoTime after] of each park. */
public class ClockMarks {
    public static void main(String[] args) throws IOException {
        StringBuilder marks = new StringBuilder();
        long end = System.nanoTime() + 6_000_000_000L;
        while (System.nanoTime() < end) {
            long before = System.nanoTime();
            LockSupport.parkNanos(12_000_000L);
            long after = System.nanoTime();
            marks.append("[0, ").append(before).append(", ").append(after).append("]\n");
        }
        Files.writeString(Path.of(args[0]), marks.toString());
    }
}
