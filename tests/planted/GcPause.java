/** Planted: a small heap, nearly filled by what lives, so that the collector stops the program again and again. */
public class GcPause {
    static final class Node {
        Node next;
        long a, b, c;
    }

    static Node[] chains = new Node[1000];

    static void sessions(int slot) {
        chains[slot] = grow();
    }

    static void prompts(int slot) {
        chains[slot + 250] = grow();
    }

    static void answers(int slot) {
        chains[slot + 500] = grow();
    }

    static void embeddings(int slot) {
        chains[slot + 750] = grow();
    }

    static Node grow() {
        Node head = null;
        for (int n = 0; n < 1000; n++) {
            Node node = new Node();
            node.next = head;
            head = node;
        }
        return head;
    }

    public static void main(String[] arguments) throws InterruptedException {
        long end = System.nanoTime() + 3_000_000_000L;
        for (int slot = 0; System.nanoTime() < end; slot = (slot + 1) % 250) {
            sessions(slot);
            prompts(slot);
            answers(slot);
            embeddings(slot);
            if (slot % 5 == 0) {
                Thread.sleep(1);
            }
        }
    }
}
